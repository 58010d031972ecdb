"""Monthly partitions of the usage tables on PostgreSQL, made ahead. A row whose month has none lands in the default partition
and moves when its month is made, so nothing is ever refused for want of a partition."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.tables import PARTITIONED
from billing.times import datetime_of, first_id_at, us_of

MONTHS_AHEAD: Final = 3
PARTITION_LOCK: Final = 0x6D67_7061_7274  # "mgpart": one maker at a time


def _month(at_us: int, ahead: int) -> datetime:
    moment = datetime_of(at_us)
    months = moment.year * 12 + moment.month - 1 + ahead
    return datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC)


async def ensure_partitions(connection: AsyncConnection, at_us: int, months_ahead: int = MONTHS_AHEAD) -> list[str]:
    """Make the partitions of the month of `at_us` and the `months_ahead` after it; return the names of the new ones.

    Does nothing on SQLite. Call it at start and once a day.
    """
    if connection.dialect.name != "postgresql":
        return []
    await connection.execute(text(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})"))
    made = []
    for ahead in range(months_ahead + 1):
        start = _month(at_us, ahead)
        low, high = first_id_at(us_of(start)), first_id_at(us_of(_month(at_us, ahead + 1)))
        for table, column in PARTITIONED:
            name = f"{table}_{start:%Y_%m}"
            if await connection.scalar(text("SELECT to_regclass(:name)"), {"name": name}) is not None:
                continue
            bounds = f"FROM ('{low}') TO ('{high}')"
            await connection.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"))
            await connection.execute(
                text(
                    f"WITH moved AS (DELETE FROM {table}_default WHERE {column} >= '{low}' AND {column} < '{high}' RETURNING *)"
                    f" INSERT INTO {name} SELECT * FROM moved"
                )
            )
            await connection.execute(text(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES {bounds}"))
            made.append(name)
    return made
