"""Letting old usage rows go, a chunk at a time. Rollups stay for ever: statements and budgets need them.

A chunk is one short transaction of its caller: usage rows older than a moment, with their lines, attempts and corrections, the
oldest first. On PostgreSQL a month's partition that is empty afterwards is dropped (`drop_empty_partitions`).
"""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy import delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.partitions import PARTITION_LOCK
from billing.tables import PARTITIONED, attempts, corrections, usage, usage_lines
from billing.times import EARLIEST_US, datetime_of, first_id_at

CHUNK: Final = 500
"""Rows a chunk: a few milliseconds, so that the recorder and admin writes never wait for long."""


async def delete_usage_before(connection: AsyncConnection, before_us: int, limit: int = CHUNK) -> int:
    """Delete up to `limit` of the oldest usage rows whose id is older than `before_us`; how many went."""
    query = select(usage.c.id).where(usage.c.id < first_id_at(before_us)).order_by(usage.c.id).limit(limit)
    ids = list((await connection.execute(query)).scalars())
    if not ids:
        return 0
    for table, column in (
        (usage_lines, usage_lines.c.usage_id),
        (attempts, attempts.c.usage_id),
        (corrections, corrections.c.original_id),
        (usage, usage.c.id),
    ):
        await connection.execute(delete(table).where(column.in_(ids)))
    return len(ids)


async def drop_empty_partitions(connection: AsyncConnection, before_us: int) -> list[str]:
    """On PostgreSQL: drop monthly partitions that end before `before_us` and hold nothing; their names. SQLite has none."""
    if connection.dialect.name != "postgresql":
        return []
    await connection.execute(text(f"SELECT pg_advisory_xact_lock({PARTITION_LOCK})"))
    limit = f"{datetime_of(max(before_us, EARLIEST_US)):%Y_%m}"
    dropped = []
    for table, _ in PARTITIONED:
        children = await connection.execute(
            text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:name AS regclass)"),
            {"name": table},
        )
        for name in sorted(children.scalars()):
            month = re.fullmatch(rf"{table}_(\d{{4}}_\d{{2}})", name)
            if month is None or month[1] >= limit:
                continue
            if await connection.scalar(text(f"SELECT 1 FROM {name} LIMIT 1")) is None:
                await connection.execute(text(f"DROP TABLE {name}"))
                dropped.append(name)
    return dropped


async def count_usage_before(connection: AsyncConnection, before_us: int) -> int:
    """How many usage rows are older than that."""
    return int(await connection.scalar(select(func.count()).where(usage.c.id < first_id_at(before_us))) or 0)
