"""Dashboard sessions: a random cookie, of which the database keeps a keyed hash, opened with the admin key or a role's token.

A session ends after twelve hours, at sign-out, and with what it was opened with: a revoked or expired token, a changed admin key.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.times import HOUR_US, now_us
from gateway.access.pepper import Pepper
from gateway.admin.roles import Principal, Role
from gateway.admin.tables import admin_sessions
from gateway.admin.tokens import get_token

COOKIE: Final = "metergate_session"
LIFE_US: Final = 12 * HOUR_US


@dataclass(frozen=True, slots=True)
class Session:
    """`csrf` is what every form of the session has to send along."""

    principal: Principal
    csrf: str


def keyed(pepper: Pepper, purpose: bytes, value: bytes) -> bytes:
    """HMAC-SHA256 under the pepper, apart for each purpose."""
    return hmac.digest(pepper.value, purpose + b"\0" + value, "sha256")


def csrf_of(pepper: Pepper, cookie: str) -> str:
    return keyed(pepper, b"dashboard csrf", cookie.encode()).hex()


async def open_session(connection: AsyncConnection, pepper: Pepper, principal: Principal, credential: bytes) -> str:
    """A new session; returns its cookie. A cookie is never taken over from the browser. Sessions past their end are deleted."""
    cookie = secrets.token_urlsafe(32)
    at_us = now_us()
    await connection.execute(sa.delete(admin_sessions).where(admin_sessions.c.expires_at_us <= at_us))
    values = {
        "digest": keyed(pepper, b"dashboard session", cookie.encode()),
        "token_id": principal.token_id,
        "credential": keyed(pepper, b"dashboard credential", credential),
        "name": principal.name,
        "role": principal.role,
        "team_id": principal.team_id,
        "created_at_us": at_us,
        "expires_at_us": at_us + LIFE_US,
    }
    await connection.execute(sa.insert(admin_sessions).values(values))
    return cookie


async def find_session(
    connection: AsyncConnection, pepper: Pepper, cookie: str, credentials: Sequence[bytes]
) -> Session | None:
    """The session of a cookie, while it and what it was opened with last: a token, or one of `credentials`."""
    table = admin_sessions
    digest = keyed(pepper, b"dashboard session", cookie.encode())
    row = (await connection.execute(sa.select(table).where(table.c.digest == digest))).one_or_none()
    at_us = now_us()
    if row is None or row.expires_at_us <= at_us:
        return None
    if row.token_id is None:
        standing = [keyed(pepper, b"dashboard credential", each) for each in credentials]
        if not any(hmac.compare_digest(bytes(row.credential), each) for each in standing):
            return None
    else:
        token = await get_token(connection, row.token_id)
        if token is None or not token.works_at(at_us):
            return None
    principal = Principal(row.name, Role(row.role), row.team_id, row.token_id)
    return Session(principal, csrf_of(pepper, cookie))


async def close_session(connection: AsyncConnection, pepper: Pepper, cookie: str) -> None:
    digest = keyed(pepper, b"dashboard session", cookie.encode())
    await connection.execute(sa.delete(admin_sessions).where(admin_sessions.c.digest == digest))
