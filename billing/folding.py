"""How coarse rollups are kept: quarter-hours are folded into them when they are over, and what arrives later adds to both.

The recorder writes quarter-hours only, as long as they are not folded: that is nearly always, and costs it nothing. `fold`
moves the mark, an hour at most at a time. A row that comes for a quarter-hour before the mark adds to the spans over it in
its own transaction. On PostgreSQL a lock keeps the mark where it is while a recorder writes; on SQLite there is one writer.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.coarse import COARSE, Coarse
from billing.coarse_tables import CURRENCIES, rollup_mark
from billing.columns import Int64
from billing.errors import BillingError
from billing.tables import TRAFFIC_SUMS, rollup_traffic
from billing.times import HOUR_US, quarter_of

FOLD_AFTER_US: Final = 5 * 60 * 1_000_000
"""A quarter-hour is folded when it is over for so long: nearly all of its requests are recorded by then."""
_MARK_LOCK: Final = 0x6D67_6D61_726B  # "mgmark"


async def folded_until(connection: AsyncConnection) -> int:
    """The mark: every span that ends by then stands in the coarse rollups."""
    mark_us = (await connection.exec_driver_sql("SELECT until_us FROM rollup_mark")).scalar()
    if mark_us is None:
        raise BillingError("the database has no rollup_mark row; run `metergate db upgrade`")
    return int(mark_us)


async def hold_mark(connection: AsyncConnection) -> int:
    """The mark, which nothing moves until this transaction is over. For whoever adds to `rollup_traffic`."""
    if connection.dialect.name == "postgresql":
        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock_shared({_MARK_LOCK})")
    return await folded_until(connection)


async def take_mark(connection: AsyncConnection) -> int:
    """The mark, with everybody kept out who adds to `rollup_traffic`."""
    if connection.dialect.name == "postgresql":
        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MARK_LOCK})")
    return await folded_until(connection)


async def fold(connection: AsyncConnection, now_us: int) -> bool:
    """Fold the next quarter-hours that are due, an hour's at most; whether more are. The caller's transaction must be a
    writing one."""
    due_us = quarter_of(now_us - FOLD_AFTER_US)
    if due_us <= await folded_until(connection) or due_us <= (mark_us := await take_mark(connection)):
        return False
    bucket = rollup_traffic.c.bucket_us
    first = await connection.scalar(select(func.min(bucket)).where(bucket >= mark_us))
    until_us = due_us if first is None else min(due_us, first - first % HOUR_US + HOUR_US)
    for coarse in COARSE:
        for at, span_us in enumerate(coarse.spans):
            low, high = mark_us - mark_us % span_us, until_us - until_us % span_us
            if low < high:
                await _fold_spans(connection, coarse, at, low, high)
    await connection.execute(update(rollup_mark).values(until_us=until_us))
    return until_us < due_us


async def refold(connection: AsyncConnection, bucket_us: int) -> None:
    """Make the spans over one quarter-hour again out of it and its neighbours. The caller's transaction must be a writing one."""
    mark_us = await take_mark(connection)
    for coarse in COARSE:
        cells = coarse.table.c
        for at, span_us in enumerate(coarse.spans):
            start_us = bucket_us - bucket_us % span_us
            if start_us + span_us <= mark_us:
                gone = coarse.table.delete().where(cells.span_us == span_us, cells.bucket_us == start_us)
                await connection.execute(gone)
                await _fold_spans(connection, coarse, at, start_us, start_us + span_us)


async def _fold_spans(connection: AsyncConnection, coarse: Coarse, at: int, low_us: int, high_us: int) -> None:
    """The cells of the span at that place for [low, high), out of those of the next shorter span, or of quarter-hours."""
    span_us, name = coarse.spans[at], coarse.table.name
    source = "rollup_traffic WHERE" if at == 0 else f"{name} WHERE span_us = {coarse.spans[at - 1]} AND"
    names = ", ".join((*coarse.names, *CURRENCIES))
    sums = ", ".join(f"CAST(SUM({each}) AS BIGINT)" for each in TRAFFIC_SUMS)
    statement = f"""
        INSERT INTO {name} ({", ".join((*coarse.key, *TRAFFIC_SUMS))})
        SELECT {span_us}, bucket_us - bucket_us % {span_us} AS start_us, {names}, {sums}
        FROM {source} bucket_us >= :low AND bucket_us < :high GROUP BY start_us, {names}
    """
    bounds = (bindparam("low", type_=Int64), bindparam("high", type_=Int64))
    await connection.execute(text(statement).bindparams(*bounds), {"low": low_us, "high": high_us})
