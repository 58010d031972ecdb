"""Which of a process's settlements the database counts by now.

A busy door asks this of every request once, so it asks in plain SQL: SQLAlchemy's expressions take several times as long an id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.tables import OVERFLOWED

MOST_HELD: Final = 1000
IDS_PER_QUERY: Final = 500

_ROWS: Final = (
    f"SELECT id, settled_nano IS NOT NULL OR {OVERFLOWED} OR EXISTS (SELECT 1 FROM corrections WHERE original_id = usage.id)"
    " FROM usage WHERE id"
)


async def counted_among(connection: AsyncConnection, ids: Collection[UUID]) -> set[UUID]:
    """Those that the database counts. A row without an amount counts nothing there, so what was posted for it stays until the row
    is corrected; the newest `MOST_HELD` of such."""
    counted, held = set[UUID](), list[UUID]()
    listed = list(ids)
    for start in range(0, len(listed), IDS_PER_QUERY):
        asked = {id_.int: id_ for id_ in listed[start : start + IDS_PER_QUERY]}
        for found, counts in await _rows(connection, list(asked.values())):
            if counts:
                counted.add(asked[found])
            else:
                held.append(asked[found])
    return counted.union(sorted(held)[:-MOST_HELD])


async def _rows(connection: AsyncConnection, ids: Sequence[UUID]) -> list[tuple[int, bool]]:
    """The ids that have a row, as integers, and whether it counts."""
    if connection.dialect.name == "postgresql":
        return [(id_.int, counts) for id_, counts in await _asked(connection, "= ANY($1::uuid[])", (ids,))]
    as_bytes = tuple([id_.int.to_bytes(16, "big") for id_ in ids])
    rows = await _asked(connection, f"IN ({','.join('?' * len(ids))})", as_bytes)
    return [(int.from_bytes(id_, "big"), counts) for id_, counts in rows]


async def _asked(connection: AsyncConnection, which: str, values: tuple[Any, ...]) -> Iterable[Any]:
    return await connection.exec_driver_sql(f"{_ROWS} {which}", values)
