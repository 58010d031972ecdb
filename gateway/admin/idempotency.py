"""Idempotency keys: a write that is said again under the same key is answered again and not done again. Kept for a day."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.times import DAY_US, now_us
from gateway.admin.failures import Replayed, conflict, invalid
from gateway.admin.tables import idempotency_keys

HEADER: Final = "Idempotency-Key"
MAX_KEY: Final = 200
KEPT_US: Final = DAY_US


def check_key(key: str) -> str:
    """Raises `ApiError` 422 for one that could not be a key."""
    if not 1 <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise invalid(f"{HEADER}: 1 to {MAX_KEY} printable ASCII characters", HEADER)
    return key


async def refuse_second(connection: AsyncConnection, actor: str, key: str, request: str) -> None:
    """Raises `Replayed` when this write was done already; `ApiError` when the key served for another, or for a secret."""
    table = idempotency_keys
    query = sa.select(table).where(
        table.c.actor == actor, table.c.key == key, table.c.created_at_us > now_us() - KEPT_US
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return
    if row.request != request:
        raise invalid(f"{HEADER}: it was sent before with another request; use a new key for a new request", HEADER)
    if row.secret:
        message = f"{HEADER}: done already; its secret was shown once and is not kept. What was made: {row.answer}"
        raise conflict(message, HEADER)
    raise Replayed(row.answer)


async def remember(
    connection: AsyncConnection, actor: str, key: str, request: str, answer: str, *, secret: bool
) -> None:
    """In the write's own transaction: both stand or neither does."""
    table = idempotency_keys
    at_us = now_us()
    await connection.execute(sa.delete(table).where(table.c.created_at_us <= at_us - KEPT_US))
    values = {
        "actor": actor,
        "key": key,
        "request": request,
        "answer": answer,
        "secret": secret,
        "created_at_us": at_us,
    }
    try:
        await connection.execute(sa.insert(table).values(values))
    except IntegrityError as error:
        raise conflict(f"{HEADER}: the same request is being done at this moment; send it again", HEADER) from error
