"""What a team, a key or everybody has spent in a period, out of the rollups: the database's side of every budget."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.coarse import FINE, Piece, cover
from billing.coarse_tables import UNREFERENCED, rollup_routes
from billing.columns import Int64, RequestIdType
from billing.database import is_overflow
from billing.errors import NoRate
from billing.exchange import RateBook, RateKind
from billing.folding import folded_until
from billing.money import INT64_MAX, Money, divide_half_even
from billing.rollup_reads import rollup_sums
from billing.tables import OVERFLOWED, rollup_traffic
from billing.times import QUARTER_US, first_id_at, format_time

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
    return Money(currency, sum(row.sums[0] for row in rows if row.settlement_currency == currency))


async def overflowed(
    connection: AsyncConnection, scope: str, scope_id: str | None, start_us: int, end_us: int | None = None
) -> bool:
    """Whether a request in that time has no amount because 64 bits could not hold it, and nobody has put it right.

    All there are, next to none, are read first: PostgreSQL would else walk all that the key or the team ever used."""
    where = ["id >= :first"]
    values: dict[str, Any] = {"first": first_id_at(start_us)}
    if end_us is not None:
        where.append("id < :end")
        values["end"] = first_id_at(end_us)
    ids = [bindparam(name, type_=RequestIdType) for name in values]
    if scope != "all":
        where.append("team_id = :scope_id" if scope == "team" else "key_id = :scope_id")
        values["scope_id"] = scope_id
    query = (
        f"WITH beyond AS MATERIALIZED (SELECT id, team_id, key_id FROM usage {_by(connection, 'ix_usage_overflow')} "
        f"WHERE {OVERFLOWED} AND kind <> 'reversal') SELECT id FROM beyond WHERE {' AND '.join(where)} "
        "AND NOT EXISTS (SELECT 1 FROM corrections WHERE original_id = beyond.id) LIMIT 1"
    )
    return (await connection.execute(text(query).bindparams(*ids), values)).first() is not None


def _by(connection: AsyncConnection, index: str) -> str:
    """SQLite knows no sizes, and would rather walk a month of the table than an index that holds next to nothing."""
    return f"INDEXED BY {index}" if connection.dialect.name == "sqlite" else ""


async def _spent_by_all(
    connection: AsyncConnection, currency: str, span: tuple[int, int], rates: RateBook | None
) -> Money:
    total, elsewhere = 0, False
    for row in await rollup_sums(connection, [span], ["list_nano", "reference_nano"]):
        list_nano, reference_nano = row.sums
        if row.list_currency == currency:
            total += list_nano
        elif row.settlement_currency == currency:
            total += reference_nano
        else:
            elsewhere = elsewhere or row.list_currency != ""
    others: Counter[tuple[int, str]] = Counter()
    for piece in cover((QUARTER_US,), await folded_until(connection), *span):
        others.update(await _unreferenced(connection, currency, piece))
        if elsewhere:
            others.update(await _settled_elsewhere(connection, currency, piece))
    for (bucket_us, base), nano in others.items():
        quote = None
        if rates is not None:
            quote = rates.find(RateKind.REFERENCE, base, currency, bucket_us, rates.version)
        if quote is None:
            raise NoRate(
                f"no reference rate in force at {format_time(bucket_us)} leads from {base} to {currency}, and what was spent "
                "then counts in this budget; record one from then on (`metergate rate post … --kind reference --from …`)"
            )
        total += divide_half_even(nano * quote.numerator, quote.denominator)
    return Money(currency, total)


async def _unreferenced(connection: AsyncConnection, currency: str, piece: Piece) -> Counter[tuple[int, str]]:
    """List amounts per quarter-hour and currency that settle in `currency` and had no reference rate."""
    table = "rollup_traffic"
    if piece.span_us != FINE:
        table = f"rollup_routes {_by(connection, 'ix_rollup_routes_unreferenced')}"
    query = text(
        f"SELECT bucket_us, list_currency, SUM(unreferenced_nano) FROM {table} WHERE {UNREFERENCED} AND bucket_us >= :first "
        "AND bucket_us < :end AND settlement_currency = :currency AND list_currency <> :currency "
        f"{'' if piece.span_us == FINE else f'AND span_us = {piece.span_us}'} GROUP BY bucket_us, list_currency"
    ).bindparams(bindparam("first", piece.start_us, Int64), bindparam("end", piece.end_us, Int64))
    found = await connection.execute(query, {"currency": currency})
    return Counter({(bucket_us, base): int(nano) for bucket_us, base, nano in found})


async def _settled_elsewhere(connection: AsyncConnection, currency: str, piece: Piece) -> Counter[tuple[int, str]]:
    """List amounts per quarter-hour and currency that settle in another currency than `currency`, and are not listed in it."""
    table = rollup_traffic if piece.span_us == FINE else rollup_routes
    cells = table.c
    query = (
        select(cells.bucket_us, cells.list_currency, func.sum(cells.list_nano))
        .where(cells.bucket_us >= piece.start_us, cells.bucket_us < piece.end_us, cells.list_nano != 0)
        .where(cells.settlement_currency != currency, cells.list_currency != currency)
        .group_by(cells.bucket_us, cells.list_currency)
    )
    if piece.span_us != FINE:
        query = query.where(cells.span_us == piece.span_us)
    found = await connection.execute(query)
    return Counter({(bucket_us, base): int(nano) for bucket_us, base, nano in found})
