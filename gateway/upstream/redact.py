"""A provider's words, made fit for a caller: its error bodies can quote a key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

MASK: Final = "***"
MOST_CHARS: Final = 2000

_KEY_LIKE: Final = re.compile(
    r"(?:sk|pk|rk|key|gsk|xai|hf|AIza|Bearer)[-_ ][A-Za-z0-9*_\-./+=]{6,}"
    r"|AIza[A-Za-z0-9_\-]{10,}"
    r"|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-.]+"
)
_SHORTEST_PART: Final = 6


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Body(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: str | None = None


class ProviderError(msgspec.Struct, frozen=True):
    """What a provider said, before redaction."""

    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


_body = msgspec.json.Decoder(_Body)
_error = msgspec.json.Decoder(_Error | str)


def read_error(body: bytes) -> ProviderError:
    """The error of an error body, in whichever of the usual shapes; an unreadable one has an empty message."""
    try:
        parsed = _body.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ProviderError("")
    if isinstance(parsed.error, _Error):
        return _of(parsed.error)
    return ProviderError(parsed.error or parsed.message or parsed.detail or "")


def read_error_object(raw: bytes) -> ProviderError:
    """The same for the value of `error` alone, as it stands in a stream."""
    try:
        parsed = _error.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return ProviderError("")
    return ProviderError(parsed) if isinstance(parsed, str) else _of(parsed)


def _of(error: _Error) -> ProviderError:
    return ProviderError(error.message or "", error.type, error.param, None if error.code is None else str(error.code))


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` without our keys at the provider, whole or in part, nor anything that looks like a key, bounded in length."""
    for secret in secrets:
        text = text.replace(secret, MASK)
        for part in (secret[:12], secret[-8:], secret[-4:] if len(secret) >= 20 else ""):
            if len(part) >= _SHORTEST_PART or (len(part) == 4 and part in text and MASK not in part):
                text = text.replace(part, MASK)
    return _KEY_LIKE.sub(MASK, text)[:MOST_CHARS]
