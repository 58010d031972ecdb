"""How a team key is made, recognised and hashed: `sk-mg-<public id>-<secret>`."""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from gateway.access.pepper import Pepper
from gateway.secret import Secret

PREFIX: Final = "sk-mg-"
SECRET_BYTES: Final = 32
_SHAPE: Final = re.compile(rb"sk-mg-[a-z2-7]{16}-[A-Za-z0-9_]{43}")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made. `secret` leaves the process once, in the answer that creates it; only `digest` is stored."""

    public_id: str
    secret: Secret
    digest: bytes


def random_id() -> str:
    """16 lowercase base32 characters: 80 random bits."""
    return base64.b32encode(secrets.token_bytes(10)).decode().lower()


def new_key(pepper: Pepper, public_id: str | None = None) -> NewKey:
    """A fresh key; a rotation passes the public id that stays."""
    public_id = public_id or random_id()
    body = secrets.token_urlsafe(SECRET_BYTES).replace("-", "_")
    text = f"{PREFIX}{public_id}-{body}"
    return NewKey(public_id, Secret(text), digest(pepper, text.encode()))


def digest(pepper: Pepper, key: bytes) -> bytes:
    """HMAC-SHA256 of the whole key under the pepper: 32 bytes."""
    return hmac.digest(pepper.value, key, "sha256")


def looks_like_key(key: bytes) -> bool:
    """Whether this has the shape of a key at all: anything else is not worth hashing."""
    return _SHAPE.fullmatch(key) is not None
