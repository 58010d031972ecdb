"""The audit log: every admin action, in the transaction that does it, chained by hashes.

hash = SHA-256 of the JSON array [previous hash, sequence, at_us, actor, role, address, action, target, before, after], where
`before` and `after` are the stored texts. The database refuses to change or remove an entry; whoever gets round that breaks the
chain, and whoever cuts its end off differs from `audit_head`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.times import now_us
from gateway.admin.tables import audit_head, audit_log

FIRST: Final = "0" * 64
"""What the first entry follows."""
MAX_TEXT: Final = 64 * 1024
_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One action. `before` and `after` are JSON texts; `action` is the route, `target` what it was asked of."""

    sequence: int
    at_us: int
    actor: str
    role: str
    address: str | None
    action: str
    target: str
    before: str | None
    after: str | None
    previous: str
    hash: str

    def expected_hash(self) -> str:
        fields = (self.previous, self.sequence, self.at_us, self.actor, self.role, self.address)
        said = (self.action, self.target, self.before, self.after)
        return hashlib.sha256(msgspec.json.encode([*fields, *said])).hexdigest()


@dataclass(frozen=True, slots=True)
class Chain:
    """What a check has found: the entries read, the newest hash, and the first fault in words; None while the chain is whole."""

    entries: int = 0
    hash: str = FIRST
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Where the log ends: the last entry that was written, and the last one that is there."""

    sequence: int
    hash: str
    newest: int


def text_of(value: object) -> str | None:
    """A view as the log keeps it; beyond 64 KiB its size and hash stand for it."""
    if value is None:
        return None
    encoded = msgspec.json.encode(value)
    if len(encoded) > MAX_TEXT:
        encoded = msgspec.json.encode({"bytes": len(encoded), "sha256": hashlib.sha256(encoded).hexdigest()})
    return encoded.decode()


async def append(
    connection: AsyncConnection,
    *,
    actor: str,
    role: str,
    address: str | None,
    action: str,
    target: str,
    before: str | None,
    after: str | None,
) -> Entry:
    """Adds an entry in the open transaction, as its last act: from here to the commit other writers of the log wait."""
    head = (await connection.execute(sa.select(audit_head).with_for_update())).one()
    unsealed = Entry(head.sequence + 1, now_us(), actor, role, address, action, target, before, after, head.hash, "")
    values = {name: getattr(unsealed, name) for name in Entry.__dataclass_fields__}
    values["hash"] = unsealed.expected_hash()
    await connection.execute(sa.insert(audit_log).values(values))
    await connection.execute(sa.update(audit_head).values(sequence=values["sequence"], hash=values["hash"]))
    return Entry(**values)


async def list_entries(
    connection: AsyncConnection,
    *,
    actor: str | None,
    target: str | None,
    start_us: int | None,
    end_us: int | None,
    before: int | None,
    limit: int,
) -> list[Entry]:
    """Newest first, from before that sequence."""
    columns = audit_log.c
    query = sa.select(audit_log).order_by(columns.sequence.desc()).limit(limit)
    for column, value in ((columns.actor, actor), (columns.target, target)):
        if value is not None:
            query = query.where(column == value)
    if start_us is not None:
        query = query.where(columns.at_us >= start_us)
    if end_us is not None:
        query = query.where(columns.at_us < end_us)
    if before is not None:
        query = query.where(columns.sequence < before)
    return [_entry(row) for row in await connection.execute(query)]


async def verify(connection: AsyncConnection) -> Chain:
    """Reads the log from its beginning: numbers without a gap, each hash right, and the end where the head says it is."""
    head, chain = await read_head(connection), Chain()
    while chain.broken is None and chain.entries < head.sequence:
        chain = await follow(connection, chain, head)
    return ended(chain, head)


async def read_head(connection: AsyncConnection) -> Head:
    """Of one moment, whoever writes meanwhile."""
    newest = sa.select(sa.func.coalesce(sa.func.max(audit_log.c.sequence), 0)).scalar_subquery()
    query = sa.select(audit_head.c.sequence, audit_head.c.hash, newest.label("newest"))
    return Head(*(await connection.execute(query)).one())


async def follow(connection: AsyncConnection, chain: Chain, head: Head, limit: int = _CHUNK) -> Chain:
    """A whole `chain` that has not come to `head` yet, read on by at most `limit` entries. Hashes are computed in a thread."""
    rows = audit_log.c
    query = sa.select(audit_log).where(rows.sequence > chain.entries, rows.sequence <= head.sequence)
    found = (await connection.execute(query.order_by(rows.sequence).limit(limit))).all()
    if not found:
        return replace(chain, broken=f"the log ends at entry {chain.entries}, but entry {head.sequence} was written")
    return await asyncio.to_thread(_continued, chain, found)


def _continued(chain: Chain, rows: Sequence[sa.Row[Any]]) -> Chain:
    for row in rows:
        entry = _entry(row)
        if entry.sequence != chain.entries + 1:
            return replace(chain, broken=f"entry {chain.entries + 1} is missing")
        if entry.previous != chain.hash:
            return replace(chain, broken=f"entry {entry.sequence} does not follow the hash of the one before it")
        if entry.hash != entry.expected_hash():
            return replace(chain, broken=f"entry {entry.sequence} is not what was written: its hash differs")
        chain = Chain(entry.sequence, entry.hash)
    return chain


def ended(chain: Chain, head: Head) -> Chain:
    """A chain that was followed to `head`: it is broken, too, where that is no end of the log, or not its own."""
    if chain.broken is not None:
        return chain
    if head.newest != head.sequence:
        return replace(chain, broken=f"the log ends at entry {head.newest}, but entry {head.sequence} was written")
    if chain.entries != head.sequence:
        return replace(
            chain, broken=f"the log ends at entry {head.sequence}, but entry {chain.entries} was there before"
        )
    if chain.hash != head.hash:
        return replace(chain, broken=f"entry {chain.entries} is not the one that was written last: its hash differs")
    return chain


def _entry(row: sa.Row[Any]) -> Entry:
    return Entry(**row._mapping)
