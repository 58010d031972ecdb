"""Which of a process's settlements the database counts by now.

A busy door asks this of every request once, so it asks in plain SQL: SQLAlchemy's expressions take several times as long an id.
SQLite's driver wants the interpreter for every row, at the cost of whoever serves requests meanwhile, and keeps the statements
that it has prepared: so there it is one statement for any number of ids, and answers in one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.tables import OVERFLOWED

MOST_HELD: Final = 1000
IDS_PER_QUERY: Final = 1000
"""Requests wait for a millisecond while so many are put together and taken apart."""
ID_BYTES: Final = 16

_COUNTS: Final = (
    f"settled_nano IS NOT NULL OR {OVERFLOWED} OR EXISTS (SELECT 1 FROM corrections WHERE original_id = usage.id)"
)
_POSTGRESQL: Final = f"SELECT id, {_COUNTS} AS counts FROM usage WHERE id = ANY($1::uuid[])"
_SQLITE: Final = (
    "WITH RECURSIVE place (at) AS (SELECT 1 UNION ALL"
    f" SELECT at + {ID_BYTES} FROM place WHERE at + {ID_BYTES} <= length(?1)),"
    f" found AS (SELECT hex(id) AS id, {_COUNTS} AS counts"
    f" FROM place CROSS JOIN usage ON id = substr(?1, at, {ID_BYTES}))"
    " SELECT group_concat(id, '') FILTER (WHERE counts) AS counted,"
    " group_concat(id, '') FILTER (WHERE NOT counts) AS held FROM found"
)


async def counted_among(connection: AsyncConnection, ids: Collection[UUID]) -> set[UUID]:
    """Those that the database counts. A row without an amount counts nothing there, so what was posted for it stays until the row
    is corrected; the newest `MOST_HELD` of such."""
    find = _in_postgresql if connection.dialect.name == "postgresql" else _in_sqlite
    counted, held = set[UUID](), list[UUID]()
    listed = list(ids)
    for start in range(0, len(listed), IDS_PER_QUERY):
        found, without = await find(connection, listed[start : start + IDS_PER_QUERY])
        counted |= found
        held += without
    return counted.union(sorted(held)[:-MOST_HELD])


async def _in_postgresql(connection: AsyncConnection, ids: Sequence[UUID]) -> tuple[set[UUID], list[UUID]]:
    asked = {id_.int: id_ for id_ in ids}
    counted, held = set[UUID](), list[UUID]()
    for row in await connection.exec_driver_sql(_POSTGRESQL, (ids,)):
        if row.counts:
            counted.add(asked[row.id.int])
        else:
            held.append(asked[row.id.int])
    return counted, held


async def _in_sqlite(connection: AsyncConnection, ids: Sequence[UUID]) -> tuple[set[UUID], list[UUID]]:
    asked = {id_.int.to_bytes(ID_BYTES, "big"): id_ for id_ in ids}
    row = (await connection.exec_driver_sql(_SQLITE, (b"".join(asked),))).one()
    return {asked[id_] for id_ in _split(row.counted)}, [asked[id_] for id_ in _split(row.held)]


def _split(concatenated: str | None) -> Iterator[bytes]:
    joined = bytes.fromhex(concatenated or "")
    return (joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES))
