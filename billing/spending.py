"""What a team, a key or everybody has spent in a period, out of the rollups: the database's side of every budget."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, exists, func, or_, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.database import is_overflow
from billing.errors import NoRate
from billing.exchange import RateBook, RateKind
from billing.money import INT64_MAX, Money, divide_half_even
from billing.rollup_reads import rollup_sums
from billing.tables import OVERFLOWED, corrections, rollup_traffic, usage
from billing.times import QUARTER_US, first_id_at

MOST: Final = INT64_MAX
_FOR_EVER: Final = 1 << 62


async def spent(
    connection: AsyncConnection,
    scope: str,
    scope_id: str | None,
    currency: str,
    start_us: int,
    end_us: int | None = None,
    rates: RateBook | None = None,
) -> Money:
    """Spent in `currency` from `start_us` (inside) to `end_us` (outside, None: open), both at a quarter-hour.

    A team's or a key's spend is what it settles. Everybody's (`all`) is the list amount: as it stands where the list currency
    is `currency`, else each row's amount at its own reference rate where that is in `currency`, else converted per
    quarter-hour at the reference rate of `rates`. Raises `NoRate` when that cannot be done: a budget is never guessed.
    What 64 bits cannot hold, of one request or of all, is the most they can (`MOST`): no budget has room beside it.
    """
    assert start_us % QUARTER_US == 0 and (end_us is None or end_us % QUARTER_US == 0)
    if await overflowed(connection, scope, scope_id, start_us, end_us):
        return Money(currency, MOST)
    span = (start_us, _FOR_EVER if end_us is None else end_us)
    try:
        if scope == "all":
            return await _spent_by_all(connection, currency, span, rates)
        where = {"team_id" if scope == "team" else "key_id": str(scope_id)}
        rows = await rollup_sums(connection, [span], ["settled_nano"], where=where)
    except DBAPIError as error:
        if is_overflow(error):
            return Money(currency, MOST)
        raise
    return Money(currency, sum(int(row.settled_nano) for row in rows if row.settlement_currency == currency))


async def overflowed(
    connection: AsyncConnection, scope: str, scope_id: str | None, start_us: int, end_us: int | None = None
) -> bool:
    """Whether a request in that time has no amount because 64 bits could not hold it, and nobody has put it right."""
    columns = usage.c
    where: list[ColumnElement[bool]] = [columns.id >= first_id_at(start_us)]
    if end_us is not None:
        where.append(columns.id < first_id_at(end_us))
    if scope != "all":
        where.append((columns.team_id if scope == "team" else columns.key_id) == scope_id)
    put_right = exists().where(corrections.c.original_id == columns.id)
    query = select(columns.id).where(text(OVERFLOWED), *where, columns.kind != "reversal", ~put_right).limit(1)
    return (await connection.scalar(query)) is not None


async def _spent_by_all(
    connection: AsyncConnection, currency: str, span: tuple[int, int], rates: RateBook | None
) -> Money:
    total, foreign = 0, False
    for row in await rollup_sums(connection, [span], ["list_nano", "reference_nano"]):
        if row.list_currency == currency:
            total += int(row.list_nano)
            continue
        foreign = foreign or row.list_currency != ""
        if row.settlement_currency == currency:
            total += int(row.reference_nano)
    columns = rollup_traffic.c
    listed, settled_in = columns.list_currency, columns.settlement_currency
    others = (
        select(columns.bucket_us, listed, func.sum(columns.list_nano))
        .where(columns.bucket_us >= span[0], columns.bucket_us < span[1], listed != currency, columns.list_nano != 0)
        .where(or_(settled_in != currency, columns.reference_nano == 0))
        .group_by(columns.bucket_us, listed)
    )
    for bucket_us, base, nano in await connection.execute(others) if foreign else ():
        quote = None
        if rates is not None:
            quote = rates.find(RateKind.REFERENCE, base, currency, bucket_us, rates.version)
        if quote is None:
            raise NoRate(
                f"no reference rate leads from {base} to {currency}; record one so that the budget can be counted"
            )
        total += divide_half_even(int(nano) * quote.numerator, quote.denominator)
    return Money(currency, total)
