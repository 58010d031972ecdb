"""Input tokens, estimated from bytes: what limits and budgets reserve before any provider has counted.

The estimate errs upward. Common tokenizers make one token of 3.5 to 4.5 bytes of English or code and of one Chinese
character (3 bytes of UTF-8), so `BYTES_PER_TOKEN = 3` covers both; JSON's framing (role names, quotes) is counted as text and
stands for the template's own tokens. Every field counts that a provider could put into a prompt, known here or not. Media in a
message (base64 data, or a part that names an address) is not text: an image counts as `MEDIA_TOKENS`, a sound or a document by
its size. `floor` errs downward: it is used to refuse a prompt that cannot fit, without turning away one that might.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

BYTES_PER_TOKEN: Final = 3
BYTES_PER_TOKEN_AT_MOST: Final = 16
MEDIA_TOKENS: Final = 1600
MEDIA_BYTES_PER_TOKEN: Final = 100
"""Of base64 that is no image: about 10 tokens for a second of sound, and a few hundred for a page."""
PRIMING_TOKENS: Final = 3

PROMPT_FIELDS: Final = (
    "messages",
    "prompt",
    "input",
    "tools",
    "functions",
    "response_format",
    "system",
    "instructions",
    "suffix",
)
_NO_PROMPT: Final = frozenset(
    (
        "model stream stream_options user metadata logit_bias stop stop_sequences n max_tokens max_completion_tokens"
        " max_output_tokens temperature top_p seed safety_identifier prompt_cache_key"
    ).split()
)
"""Every other field may reach a prompt (an engine's `documents`, a template's arguments), and counts."""
_SCALAR_BYTES: Final = 32
"""A field this small is a number or a switch."""

_MEDIA: Final = re.compile(
    rb'"(?:data|url|image_url|file_data)"\s*:\s*"(data:[a-z0-9.+/-]{1,80};base64,)?[A-Za-z0-9+/\\=]{2048,}"'
)
_PART: Final = re.compile(
    rb'"type"\s*:\s*"(?:image_url|input_image|image|input_audio|audio_url|video_url|document|input_file|file)"'
)
_WITH_MEDIA: Final = frozenset(("messages", "input", "system"))
_LONG: Final = 4096
_TOKEN_ARRAY: Final = re.compile(rb"\[\s*(?:\[\s*)?\d+\s*[,\]]")


def estimate(fields: Mapping[str, bytes | bytearray | memoryview]) -> int:
    """Tokens of the prompt, erring upward; `fields` are the raw JSON values of a request by name."""
    total = PRIMING_TOKENS
    for name, raw in fields.items():
        if name in _NO_PROMPT:
            continue
        size = len(memoryview(raw))
        if size <= _SCALAR_BYTES and name not in PROMPT_FIELDS:
            continue
        if name in _WITH_MEDIA:
            total += _estimate_messages(bytes(raw))
        elif name == "prompt" and _TOKEN_ARRAY.match(raw):
            total += bytes(raw).count(b",") + 1
        else:
            total += -(-size // BYTES_PER_TOKEN)
    return total


def floor(fields: Mapping[str, bytes | bytearray | memoryview]) -> int:
    """Tokens that the prompt has at the very least."""
    total = 0
    for name in PROMPT_FIELDS:
        raw = fields.get(name)
        if raw is not None:
            size = len(memoryview(raw))
            total += (size if size < _LONG else size - _media(bytes(raw))[2]) // BYTES_PER_TOKEN_AT_MOST
    return total


def of_text(size_bytes: int) -> int:
    """Tokens of `size_bytes` of text, erring upward: for output whose provider reported none."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def _estimate_messages(raw: bytes) -> int:
    if not raw.startswith(b"[{") and _TOKEN_ARRAY.match(raw):  # given as token ids: each is one
        return raw.count(b",") + 1
    size, media_tokens, items = len(raw), 0, 0
    if size >= _LONG:
        media_tokens, items, media_bytes = _media(raw)
        size -= media_bytes
    if b'"type"' in raw:
        media_tokens += max(0, len(_PART.findall(raw)) - items) * MEDIA_TOKENS
    return media_tokens - (-size // BYTES_PER_TOKEN)


def _media(raw: bytes) -> tuple[int, int, int]:
    """The tokens of the base64 items in `raw`, how many they are, and their bytes."""
    tokens = items = size = 0
    for match in _MEDIA.finditer(raw):
        length = match.end() - match.start()
        kind = match.group(1) or raw[max(0, match.start() - 120) : match.start()]
        items += 1
        size += length
        tokens += MEDIA_TOKENS if b"image/" in kind else max(MEDIA_TOKENS, length // MEDIA_BYTES_PER_TOKEN)
    return tokens, items, size
