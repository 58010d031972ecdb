"""Setting a record aside, listing what was set aside, and marking it resolved. No function here commits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.metering.pairing import Paired, Stray
from gateway.metering.records import AttemptOpened, RequestClosed, decode, encode
from gateway.metering.tables import dead_letters

REASON_CHARACTERS: Final = 2000


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that is no row yet, and why. `digest` is its identity."""

    digest: str
    request_id: UUID | None
    journal: str
    reason: str
    payload: bytes
    set_aside_at_us: int
    resolved_at_us: int | None = None

    def request(self) -> Paired | None:
        """The request that the letter holds; None for a stray, which can only be read by people."""
        try:
            records = [decode(payload) for payload in msgspec.msgpack.decode(self.payload, type=list[bytes])]
        except msgspec.DecodeError:
            return None
        opened = tuple(record for record in records if isinstance(record, AttemptOpened))
        closed = next((record for record in records if isinstance(record, RequestClosed)), None)
        return Paired(opened, closed) if opened else None


def letter(journal: str, item: Paired | Stray, reason: str) -> DeadLetter:
    """The letter for one thing that cannot be written; the reason is cut and stripped of what a TEXT column refuses."""
    if isinstance(item, Paired):
        payloads = [encode(record) for record in item.opened]
        if item.closed is not None:
            payloads.append(encode(item.closed))
        request_id: bytes | None = item.request_id
    else:
        payloads, request_id = [item.payload], item.request_id
    payload = msgspec.msgpack.encode(payloads)
    clean = reason.replace("\0", "").encode(errors="replace").decode()[:REASON_CHARACTERS]
    return DeadLetter(
        digest=blake2b(payload, digest_size=16).hexdigest(),
        request_id=UUID(bytes=request_id) if request_id is not None and len(request_id) == 16 else None,
        journal=journal,
        reason=clean,
        payload=payload,
        set_aside_at_us=time.time_ns() // 1000,
    )


async def set_aside(connection: AsyncConnection, letters: Sequence[DeadLetter]) -> int:
    """Stores `letters`; how many of them were not there already."""
    if not letters:
        return 0
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    rows = {one.digest: asdict(one) for one in letters}
    statement = dialect.insert(dead_letters).values([rows[digest] for digest in sorted(rows)])
    result = await connection.execute(statement.on_conflict_do_nothing().returning(dead_letters.c.digest))
    return len(result.all())


async def unresolved(connection: AsyncConnection, after: str = "", limit: int = 500) -> list[DeadLetter]:
    """Letters without a row, by digest, from the one after `after` on."""
    query = (
        select(dead_letters)
        .where(dead_letters.c.resolved_at_us.is_(None), dead_letters.c.digest > after)
        .order_by(dead_letters.c.digest)
        .limit(limit)
    )
    return [DeadLetter(**row) for row in (await connection.execute(query)).mappings()]


async def count_unresolved(connection: AsyncConnection, first: UUID, after: UUID) -> int:
    """Letters not yet resolved whose request id lies from `first` (inside) to `after` (outside)."""
    columns = dead_letters.c
    query = select(func.count()).where(
        columns.request_id >= first, columns.request_id < after, columns.resolved_at_us.is_(None)
    )
    return int(await connection.scalar(query) or 0)


async def resolve(connection: AsyncConnection, digest: str) -> None:
    await connection.execute(
        update(dead_letters).where(dead_letters.c.digest == digest).values(resolved_at_us=time.time_ns() // 1000)
    )
