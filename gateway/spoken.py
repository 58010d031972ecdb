"""The text of an answer: content, reasoning, refusals and the arguments of tools, whatever frames it came in.

Where a provider reports no usage (or an impossible one), output is estimated from this text alone, so that an answer costs the
same in one piece and as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

SAMPLE_BYTES: Final = 32 << 10
"""Of a longer stream only so much is kept; the frames of what follows are taken to be as long as in here."""
_FIELDS: Final = frozenset(
    {"content", "text", "reasoning_content", "reasoning", "refusal", "arguments", "thinking", "partial_json", "delta"}
)
_TWICE: Final = (("reasoning_content", "reasoning"), ("reasoning", "reasoning_details"))
"""Servers that say the same under both names."""


def text_of(events: bytes) -> Iterator[str]:
    """The text in a stream's events, of whichever dialect: every string that a text field of a `data:` line holds."""
    for line in events.splitlines():
        if line.startswith(b"data:"):
            yield from text_of_answer(line[5:])


def text_of_answer(body: bytes) -> Iterator[str]:
    """The same of one JSON value; nothing where it is none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return
    yield from _texts(value, "")


def size_of(texts: Iterator[str]) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts)


def _texts(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, str):
        if name in _FIELDS:
            yield value
    elif isinstance(value, dict):
        skipped = {second for first, second in _TWICE if value.get(first) and value.get(second)}
        for key, each in value.items():
            if key not in skipped:
                yield from _texts(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, name)


class Gauge:
    """How much text a stream has brought, without a look at most of it: exact up to `SAMPLE_BYTES`, close beyond."""

    __slots__ = ("_kept", "_kept_bytes", "_lines", "_size")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._kept_bytes = self._lines = self._size = 0

    def add(self, block: bytes) -> None:
        """Whole events."""
        if self._kept_bytes < SAMPLE_BYTES:
            self._kept.append(block)
            self._kept_bytes += len(block)
        else:
            self._size += len(block)
            self._lines += block.count(b"\n") or block.count(b"\r")

    def text_bytes(self) -> int:
        kept = b"".join(self._kept)
        said = size_of(text_of(kept))
        if not self._size:
            return said
        lines = kept.count(b"\n") or kept.count(b"\r") or 1
        return said + max(0, self._size - (len(kept) - said) * self._lines // lines)
