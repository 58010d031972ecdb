"""The audit log: every admin action, in the transaction that does it, chained by hashes.

hash = SHA-256 of the JSON array [previous hash, sequence, at_us, actor, role, address, action, target, before, after], where
`before` and `after` are the stored texts. The database refuses to change or remove an entry; whoever gets round that breaks the
chain, and whoever cuts its end off differs from `audit_head`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.times import now_us
from gateway.admin.tables import audit_head, audit_log

FIRST: Final = "0" * 64
"""What the first entry follows."""
MAX_TEXT: Final = 64 * 1024
_CHUNK: Final = 2000


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
    """What a check found: the entries read, the newest hash, and the first fault in words; None when the chain is whole."""

    entries: int
    hash: str
    broken: str | None


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
    sequence, last = 0, FIRST
    while True:
        query = sa.select(audit_log).where(audit_log.c.sequence > sequence).order_by(audit_log.c.sequence)
        rows = (await connection.execute(query.limit(_CHUNK))).all()
        for row in rows:
            entry = _entry(row)
            if entry.sequence != sequence + 1:
                return Chain(sequence, last, f"entry {sequence + 1} is missing")
            if entry.previous != last:
                return Chain(sequence, last, f"entry {entry.sequence} does not follow the hash of the one before it")
            if entry.hash != entry.expected_hash():
                return Chain(sequence, last, f"entry {entry.sequence} is not what was written: its hash differs")
            sequence, last = entry.sequence, entry.hash
        if len(rows) < _CHUNK:
            break
    head = (await connection.execute(sa.select(audit_head))).one()
    if (head.sequence, head.hash) != (sequence, last):
        return Chain(sequence, last, f"the log ends at entry {sequence}, but entry {head.sequence} was written")
    return Chain(sequence, last, None)


def _entry(row: sa.Row[Any]) -> Entry:
    return Entry(**row._mapping)
