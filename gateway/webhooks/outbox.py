"""What is written down of events: each once by its key, and who may try to send it next. No function here commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.times import format_time
from gateway.webhooks.tables import webhook_events

MOST_PENDING: Final = 10_000
"""So many events wait to be sent; one beyond them is written down and never sent."""
LEASE_US: Final = 60_000_000
"""After so long another process may try what one has begun to send: longer than any try lasts."""
ERROR_CHARACTERS: Final = 300

_columns = webhook_events.c
Value = str | int | bool | None


class Event(Struct, frozen=True):
    """Something that happened once. `key` is its identity and its id for the receiver; `kind` is such as `budget.threshold`.

    `data` is told as it is. After `keep_until_us` nobody can tell of it again (None: never), so the key may be forgotten.
    """

    key: str
    kind: str
    data: Mapping[str, Value]
    keep_until_us: int | None = None


class Pending(Struct, frozen=True):
    """An event that is due. `next_at_us` is what a claim compares."""

    key: str
    kind: str
    body: str
    attempts: int
    next_at_us: int


async def enqueue(connection: AsyncConnection, events: Sequence[Event], at_us: int, *, send: bool) -> set[str]:
    """Write down `events`, to be sent where `send`; the keys of those that nobody had written down before."""
    if not events:
        return set()
    room = MOST_PENDING - await pending(connection) if send else 0
    rows = []
    for number, event in enumerate({event.key: event for event in events}.values()):
        body = {"id": event.key, "type": event.kind, "created_at": format_time(at_us), "data": event.data}
        rows.append(
            {
                "key": event.key,
                "kind": event.kind,
                "body": msgspec.json.encode(body).decode(),
                "created_at_us": at_us,
                "keep_until_us": event.keep_until_us,
                "next_at_us": at_us if number < room else None,
                "attempts": 0,
            }
        )
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    rows.sort(key=lambda row: str(row["key"]))
    statement = dialect.insert(webhook_events).values(rows).on_conflict_do_nothing().returning(_columns.key)
    return set(await connection.scalars(statement))


async def pending(connection: AsyncConnection) -> int:
    """How many events wait to be sent."""
    query = select(func.count()).select_from(webhook_events).where(_columns.next_at_us.is_not(None))
    return int(await connection.scalar(query) or 0)


async def due(connection: AsyncConnection, at_us: int, limit: int) -> list[Pending]:
    """Those whose time has come, the longest-waiting first."""
    query = (
        select(_columns.key, _columns.kind, _columns.body, _columns.attempts, _columns.next_at_us)
        .where(_columns.next_at_us <= at_us)
        .order_by(_columns.next_at_us, _columns.key)
        .limit(limit)
    )
    return [Pending(*row) for row in await connection.execute(query)]


async def claim(connection: AsyncConnection, event: Pending, at_us: int) -> bool:
    """Whether this process is the one that tries it now."""
    mine = update(webhook_events).where(_columns.key == event.key, _columns.next_at_us == event.next_at_us)
    taken = await connection.execute(mine.values(next_at_us=at_us + LEASE_US, attempts=event.attempts + 1))
    return taken.rowcount == 1


async def delivered(connection: AsyncConnection, key: str, at_us: int) -> None:
    await connection.execute(
        update(webhook_events).where(_columns.key == key).values(delivered_at_us=at_us, next_at_us=None, error=None)
    )


async def failed(connection: AsyncConnection, key: str, error: str, next_at_us: int | None) -> None:
    """It is tried again at `next_at_us`, or never."""
    values = {"next_at_us": next_at_us, "error": error[:ERROR_CHARACTERS]}
    await connection.execute(update(webhook_events).where(_columns.key == key).values(values))


async def forget(connection: AsyncConnection, at_us: int, limit: int) -> int:
    """Delete `limit` events at most that are over and done with; how many it were."""
    old = select(_columns.key).where(_columns.keep_until_us <= at_us, _columns.next_at_us.is_(None)).limit(limit)
    return (await connection.execute(delete(webhook_events).where(_columns.key.in_(old)))).rowcount
