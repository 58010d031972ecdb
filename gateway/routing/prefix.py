"""What all requests of one conversation begin with, as a short hash: a replica that has served one has its pages."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    from gateway.upstream.base import Call

MOST_BYTES: Final = 4096
"""Of a prompt that is one text: what begins alike may share a prefix."""
_DIGEST_BYTES: Final = 16


class _Role(msgspec.Struct):
    role: str = ""


_items = msgspec.json.Decoder(list[Raw])
_role = msgspec.json.Decoder(_Role)


def prefix_of(call: Call) -> bytes:
    """The system prompt and the messages up to and with the first of the user; of a plain prompt its beginning."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name in ("system", "instructions"):
        if name in call.fields:
            digest.update(call.fields[name])
    said = next((call.fields[name] for name in ("messages", "prompt", "input") if name in call.fields), Raw(b""))
    for piece in _beginning(said):
        digest.update(piece)
    return digest.digest()


def _beginning(said: Raw) -> list[bytes | Raw]:
    if bytes(memoryview(said)[:1]) != b"[":
        return [bytes(memoryview(said)[:MOST_BYTES])]
    try:
        items = _items.decode(said)
    except msgspec.DecodeError:
        return [bytes(memoryview(said)[:MOST_BYTES])]
    for place, item in enumerate(items):
        if _is_users(item):
            return list(items[: place + 1])
    return [bytes(memoryview(said)[:MOST_BYTES])]


def _is_users(item: Raw) -> bool:
    try:
        return _role.decode(item).role == "user"
    except (msgspec.DecodeError, RecursionError):
        return False
