"""Counting output whose provider reported none: with the model's own tokenizer where its file lies on the disk.

A model names a file in its settings (`models[].tokenizer`): a `tokenizer.json` (read by the `tokenizers` package) or a
`*.tiktoken` file (one base64 token and its rank a line). Nothing is ever downloaded, and nothing here runs while an answer is
passed on: text is counted in a thread once the stream has ended early. Without a file an engine is asked (`/tokenize`), unless it
has said itself what a cancelled request used; else the estimator of `StreamScanner` stands.
A count is of the text that was received, so it leaves out tokens that show no text; it is flagged as an estimate all the same.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from gateway.spoken import text_of

log = logging.getLogger(__name__)

Counter: TypeAlias = Callable[[str], int]

HEARD_BYTES: Final = 4 << 20
"""Of a longer answer only the first part is counted; the rest is added in proportion."""
_PIECES: Final = re.compile(
    r"'(?:[sdmt]|ll|ve|re)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d{1,3}| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    re.IGNORECASE,
)
"""How the tokenizers of tiktoken cut text before they merge, as near as Python's `re` comes to their classes."""


class TokenizerError(Exception):
    """The file is no tokenizer that can be used here; the message says what is wrong and what to do."""


def counter(path: Path) -> Counter:
    """How many tokens a text has. Kept per file and moment of its last change. Raises `TokenizerError`."""
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror}; name a tokenizer.json or a .tiktoken file") from error
    return _load(path, changed_ns)


@lru_cache(maxsize=64)
def _load(path: Path, _changed_ns: int) -> Counter:
    if path.suffix == ".tiktoken":
        return _ByteMerges(_ranks(path)).count
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError(f"{path}: the package `tokenizers` is missing; pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise TokenizerError(f"{path}: no tokenizer.json of the `tokenizers` package: {error}") from error
    # By the batch: `encode` alone would hold every other thread back.
    return lambda text: len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        token, _, rank = line.partition(b" ")
        try:
            if line.strip():
                ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (binascii.Error, ValueError) as error:
            raise TokenizerError(f"{path}: line {number} is not `base64 rank`; is it a .tiktoken file?") from error
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise TokenizerError(f"{path}: a .tiktoken file has a rank for each of the 256 bytes; this one has not")
    return ranks


class _ByteMerges:
    """Byte-pair merging by rank: in each piece the pair with the lowest rank is merged until none is left."""

    def __init__(self, ranks: dict[bytes, int]) -> None:
        self._ranks = ranks
        self._piece = lru_cache(maxsize=65_536)(self._merged)

    def count(self, text: str) -> int:
        return sum(self._piece(piece.encode("utf-8", "replace")) for piece in _PIECES.findall(text))

    def _merged(self, piece: bytes) -> int:
        ranks = self._ranks
        if piece in ranks:
            return 1
        parts = [piece[at : at + 1] for at in range(len(piece))]
        while len(parts) > 1:
            best = min(range(len(parts) - 1), key=lambda at: ranks.get(parts[at] + parts[at + 1], 1 << 62))
            if parts[best] + parts[best + 1] not in ranks:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        return len(parts)


def count_stream(path: Path, heard: bytes, size: int) -> int | None:
    """Output tokens of a stream of `size` bytes that began with `heard`; None where the file is of no use (logged once)."""
    try:
        count = counter(path)
    except TokenizerError as error:
        _complain(str(error))
        return None
    return in_proportion(count("".join(text_of(heard))), heard, size)


def in_proportion(tokens: int, heard: bytes, size: int) -> int:
    """The tokens of all `size` bytes of a stream of which `heard` has so many."""
    return tokens if size <= len(heard) or not heard else tokens * size // len(heard)


def count_answer(path: Path, body: bytes) -> int | None:
    """The same of an answer that came in one piece."""
    return count_stream(path, b"data:" + body.replace(b"\n", b" ").replace(b"\r", b" "), 0)


@cache
def _complain(said: str) -> None:
    log.error("tokens are estimated: %s", said)
