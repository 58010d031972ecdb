"""Input tokens, estimated from bytes: what limits and budgets reserve before any provider has counted.

The estimate errs upward. Common tokenizers make one token of 3.5 to 4.5 bytes of English or code and of one Chinese
character (3 bytes of UTF-8), so `BYTES_PER_TOKEN = 3` covers both; JSON's framing (role names, quotes) is counted as text and
stands for the template's own tokens. Media inside a prompt (base64 data) is not text: it is left out and each item counts as
`MEDIA_TOKENS`. `floor` errs downward: it is used to refuse a prompt that cannot fit, without turning away one that might.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

BYTES_PER_TOKEN: Final = 3
BYTES_PER_TOKEN_AT_MOST: Final = 16
MEDIA_TOKENS: Final = 1600
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

_BASE64: Final = re.compile(rb'"(?:data:[a-z0-9.+/-]{1,80};base64,)?[A-Za-z0-9+/\\=]{2048,}"')
_LONG: Final = 4096
_TOKEN_ARRAY: Final = re.compile(rb"\[\s*\d+\s*[,\]]")


def estimate(fields: Mapping[str, bytes | bytearray | memoryview]) -> int:
    """Tokens of the prompt, erring upward; `fields` are the raw JSON values of a request by name."""
    total = PRIMING_TOKENS
    for name in PROMPT_FIELDS:
        raw = fields.get(name)
        if raw is not None:
            size = len(memoryview(raw))
            total += -(-size // BYTES_PER_TOKEN) if size < _LONG else _estimate_long(bytes(raw))
    return total


def floor(fields: Mapping[str, bytes | bytearray | memoryview]) -> int:
    """Tokens that the prompt has at the very least."""
    total = 0
    for name in PROMPT_FIELDS:
        raw = fields.get(name)
        if raw is not None:
            size = len(memoryview(raw))
            total += (size if size < _LONG else size - _media(bytes(raw))[1]) // BYTES_PER_TOKEN_AT_MOST
    return total


def of_text(size_bytes: int) -> int:
    """Tokens of `size_bytes` of text, erring upward: for output whose provider reported none."""
    return -(-size_bytes // BYTES_PER_TOKEN)


def _estimate_long(raw: bytes) -> int:
    if _TOKEN_ARRAY.match(raw):  # a prompt given as token ids: each is one
        return raw.count(b",") + 1
    items, media_bytes = _media(raw)
    return items * MEDIA_TOKENS + -(-(len(raw) - media_bytes) // BYTES_PER_TOKEN)


def _media(raw: bytes) -> tuple[int, int]:
    """How many base64 items `raw` holds, and their bytes."""
    items = size = 0
    for match in _BASE64.finditer(raw):
        items += 1
        size += match.end() - match.start()
    return items, size
