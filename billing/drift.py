"""Reconciliation inside the books: what is derived (rollups, lines' sums, wallets) against the rows that it was derived from.

`find_drift` compares, `repair_rollups` and `repair_balance` put right what is derived and nothing else: usage rows, lines, prices
and payments are never touched. A wallet's folded usage that differs from the rows is reported and left alone, for it is an entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, case, delete, func, or_, select, text, union_all, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.coarse import COARSE, Coarse
from billing.coarse_tables import CURRENCIES
from billing.errors import NotFound
from billing.folding import folded_until, refold, take_mark
from billing.ledger import add_quarters
from billing.rated import RatedLine
from billing.stored_rows import line_of, record_of
from billing.times import QUARTER_US, first_id_at, format_time, quarter_of, time_us_of
from billing.wallet_tables import wallet_entries, wallets

ROWS_PER_STEP: Final = 2000
_USAGE, _LINES, _TRAFFIC, _MONEY = tables.usage, tables.usage_lines, tables.rollup_traffic, tables.rollup_money
_SIGN: Final = case((_USAGE.c.kind == "reversal", -1), else_=1)
_ROW_SUMS: Final = ("reasoning", *tables.MONEY_COLUMNS)


@dataclass(frozen=True, slots=True)
class Drift:
    """`derived` differs from what the rows say. `what` is the table, `bucket_us` the quarter-hour (None: a running balance)."""

    what: str
    bucket_us: int | None
    where: str
    rows: str
    derived: str

    def __str__(self) -> str:
        when = "" if self.bucket_us is None else f" at {format_time(self.bucket_us)}"
        return f"{self.what}{when}: {self.where}: the rows say {self.rows}, it says {self.derived}"


async def find_drift(connection: AsyncConnection, start_us: int, end_us: int) -> list[Drift]:
    """Every difference in the quarter-hours of [start_us, end_us), and in the running balances of all wallets.

    Give it one snapshot (`billing.database.reading`, REPEATABLE READ on PostgreSQL), or a writer in between looks like drift.
    """
    found: list[Drift] = []
    oldest = await connection.scalar(select(_USAGE.c.id).order_by(_USAGE.c.id).limit(1))
    if oldest is not None:  # what is older was deleted by retention: there the rollups are all there is
        start_us = max(start_us, time_us_of(oldest))
    for bucket_us in await _buckets(connection, quarter_of(start_us), end_us):
        found += await _bucket_drift(connection, bucket_us)
    for coarse in COARSE:
        for at in range(len(coarse.spans)):
            found += await _coarse_drift(connection, coarse, at, start_us, end_us)
    return found + await _balance_drift(connection)


async def repair_rollups(connection: AsyncConnection, bucket_us: int) -> None:
    """Makes one quarter-hour of both rollups again out of its rows, and the spans over it. The caller's transaction must be a
    writing one.

    Raises `NotFound` where no row is left to make them from. On PostgreSQL both tables are locked first: a recorder that has
    not added its rows yet waits, and adds them afterwards.
    """
    await take_mark(connection)
    if connection.dialect.name == "postgresql":
        await connection.execute(text("LOCK TABLE rollup_money, rollup_traffic IN SHARE ROW EXCLUSIVE MODE"))
    for table in (_TRAFFIC, _MONEY):
        await connection.execute(delete(table).where(table.c.bucket_us == bucket_us))
    after, end = None, first_id_at(bucket_us + QUARTER_US)
    while True:
        bound = _USAGE.c.id >= first_id_at(bucket_us) if after is None else _USAGE.c.id > after
        query = select(_USAGE).where(bound, _USAGE.c.id < end).order_by(_USAGE.c.id).limit(ROWS_PER_STEP)
        rows = (await connection.execute(query)).all()
        if not rows:
            if after is None:
                raise NotFound(
                    f"no rows stand at {format_time(bucket_us)}; where retention deleted them, the rollups are all there is",
                    field="bucket",
                )
            return await refold(connection, bucket_us)
        after = rows[-1].id
        between = select(_LINES).where(_LINES.c.usage_id >= rows[0].id, _LINES.c.usage_id <= after)
        lines: dict[Any, list[RatedLine]] = {}
        for line in await connection.execute(between):
            lines.setdefault(line.usage_id, []).append(line_of(line))
        await add_quarters(connection, [record_of(row, tuple(lines.get(row.id, ()))) for row in rows])


async def repair_balance(connection: AsyncConnection, team_id: str, currency: str) -> None:
    """Makes a wallet's running balance the sum of its entries again."""
    mine = (wallets.c.team_id == team_id, wallets.c.currency == currency)
    await connection.execute(select(wallets.c.team_id).where(*mine).with_for_update())
    total = (
        select(func.coalesce(func.sum(wallet_entries.c.amount_nano), 0))
        .where(wallet_entries.c.team_id == team_id, wallet_entries.c.currency == currency)
        .scalar_subquery()
    )
    balance = await connection.scalar(select(total))
    await connection.execute(update(wallets).where(*mine).values(balance_nano=int(balance or 0)))


async def _buckets(connection: AsyncConnection, start_us: int, end_us: int) -> list[int]:
    """The quarter-hours that have rows or rollups: each row leads to its own, and the next one is looked for behind it."""
    found: set[int] = set()
    for table in (_TRAFFIC, _MONEY):
        column = table.c.bucket_us
        found.update(await _column(connection, select(column).where(column >= start_us, column < end_us).distinct()))
    at_us = start_us
    while True:
        within = (_USAGE.c.id >= first_id_at(at_us), _USAGE.c.id < first_id_at(end_us))
        first = await connection.scalar(select(_USAGE.c.id).where(*within).order_by(_USAGE.c.id).limit(1))
        if first is None:
            return sorted(found)
        found.add(quarter_of(time_us_of(first)))
        at_us = quarter_of(time_us_of(first)) + QUARTER_US


async def _column(connection: AsyncConnection, query: Select[Any]) -> list[int]:
    return [int(value) for value in (await connection.execute(query)).scalars()]


async def _bucket_drift(connection: AsyncConnection, bucket_us: int) -> list[Drift]:
    within = (_USAGE.c.id >= first_id_at(bucket_us), _USAGE.c.id < first_id_at(bucket_us + QUARTER_US))
    by = (_USAGE.c.team_id, _USAGE.c.key_id, _USAGE.c.model)
    rows = await _sums(
        connection,
        select(*by, func.sum(_SIGN), *(func.coalesce(func.sum(_USAGE.c[name]), 0) for name in _ROW_SUMS))
        .where(*within)
        .group_by(*by),
        len(by),
    )
    same = (_TRAFFIC.c.team_id, _TRAFFIC.c.key_id, _TRAFFIC.c.model)
    traffic = await _sums(
        connection,
        select(*same, func.sum(_TRAFFIC.c.requests), *(func.sum(_TRAFFIC.c[name]) for name in _ROW_SUMS))
        .where(_TRAFFIC.c.bucket_us == bucket_us)
        .group_by(*same),
        len(same),
    )
    found = _differences("rollup_traffic", bucket_us, rows, traffic)
    amounts = ("quantity", "list_nano", "settled_nano", "policy_nano", "reference_nano")
    joined = _LINES.join(_USAGE, _USAGE.c.id == _LINES.c.usage_id)
    line_key = (_USAGE.c.team_id, _USAGE.c.model, _LINES.c.token_class)
    lines = await _sums(
        connection,
        select(*line_key, func.sum(_SIGN), *(func.coalesce(func.sum(_LINES.c[name]), 0) for name in amounts))
        .select_from(joined)
        .where(*within)
        .group_by(*line_key),
        len(line_key),
    )
    money_key = (_MONEY.c.team_id, _MONEY.c.model, _MONEY.c.token_class)
    money = await _sums(
        connection,
        select(*money_key, *(func.coalesce(func.sum(_MONEY.c[name]), 0) for name in ("lines", *amounts)))
        .where(_MONEY.c.bucket_us == bucket_us)
        .group_by(*money_key),
        len(money_key),
    )
    found += _differences("rollup_money", bucket_us, lines, money)
    found += await _charge_drift(connection, bucket_us, within)
    return found + await _token_drift(connection, bucket_us, lines) + await _debit_drift(connection, bucket_us, within)


async def _token_drift(
    connection: AsyncConnection, bucket_us: int, lines: dict[tuple[str, ...], tuple[int, ...]]
) -> list[Drift]:
    """The token columns of the traffic rollup against the lines."""
    query = select(*(func.coalesce(func.sum(_TRAFFIC.c[name]), 0) for name in tables.TOKEN_COLUMNS))
    sums = (await connection.execute(query.where(_TRAFFIC.c.bucket_us == bucket_us))).one()
    counted: dict[tuple[str, ...], tuple[int, ...]] = {
        (name,): (int(value),) for name, value in zip(tables.TOKEN_COLUMNS, sums, strict=True) if value
    }
    said: dict[tuple[str, ...], tuple[int, ...]] = {}
    for (*_, kind), (_, quantity, *_) in lines.items():
        said[kind,] = (said.get((kind,), (0,))[0] + quantity,)
    return _differences("rollup_traffic", bucket_us, {key: value for key, value in said.items() if value[0]}, counted)


async def _charge_drift(connection: AsyncConnection, bucket_us: int, within: tuple[Any, ...]) -> list[Drift]:
    """What statements would charge, from the lines' rollup, against what the rows settled."""
    by = (_USAGE.c.team_id, _USAGE.c.model, _USAGE.c.settlement_currency)
    rows = select(*by, func.coalesce(func.sum(_USAGE.c.settled_nano), 0)).where(*within).group_by(*by)
    same = (_MONEY.c.team_id, _MONEY.c.model, _MONEY.c.settlement_currency)
    charged = select(*same, func.coalesce(func.sum(_MONEY.c.settled_nano), 0)).where(_MONEY.c.bucket_us == bucket_us)
    return _differences(
        "rollup_money",
        bucket_us,
        await _sums(connection, rows, len(by)),
        await _sums(connection, charged.group_by(*same), len(same)),
    )


async def _debit_drift(connection: AsyncConnection, bucket_us: int, within: tuple[Any, ...]) -> list[Drift]:
    """What usage took out of the wallets against what the rows settled. Wallets that never had a debit are younger than it."""
    by = (_USAGE.c.team_id, _USAGE.c.settlement_currency)
    query = select(*by, -func.coalesce(func.sum(_USAGE.c.settled_nano), 0)).where(*within).group_by(*by)
    rows = await _sums(connection, query, 2)
    entries = await _sums(
        connection,
        select(wallet_entries.c.team_id, wallet_entries.c.currency, wallet_entries.c.amount_nano).where(
            wallet_entries.c.bucket_us == bucket_us
        ),
        2,
    )
    return _differences("wallet_entries", bucket_us, {key: rows[key] for key in rows if key in entries}, entries)


async def _coarse_drift(
    connection: AsyncConnection, coarse: Coarse, at: int, start_us: int, end_us: int
) -> list[Drift]:
    """One span of a coarse rollup against the next shorter one, or the quarter-hours: what is folded of [start, end)."""
    table, span_us = coarse.table, coarse.spans[at]
    source = _TRAFFIC if at == 0 else table
    low = start_us - start_us % span_us
    high = min(end_us, await folded_until(connection)) // span_us * span_us
    names = (*coarse.names, *CURRENCIES)
    begins = (source.c.bucket_us - source.c.bucket_us % span_us).label("begins_us")
    parts = [begins, *(source.c[name] for name in names), *(source.c[name] for name in tables.TRAFFIC_SUMS)]
    shorter = select(*parts).where(source.c.bucket_us >= low, source.c.bucket_us < high)
    if at > 0:
        shorter = shorter.where(source.c.span_us == coarse.spans[at - 1])
    cells = (table.c.bucket_us, *(table.c[name] for name in names), *(-table.c[name] for name in tables.TRAFFIC_SUMS))
    own = select(*cells).where(table.c.span_us == span_us, table.c.bucket_us >= low, table.c.bucket_us < high)
    both = union_all(shorter, own).subquery()
    key = [both.c.begins_us, *(both.c[name] for name in names)]
    sums = [func.sum(both.c[name]) for name in tables.TRAFFIC_SUMS]
    query = select(*key, *sums).group_by(*key).having(or_(*(each != 0 for each in sums))).order_by(*key)
    found = []
    for row in await connection.execute(query):
        missing = {name: int(value) for name, value in zip(tables.TRAFFIC_SUMS, row[len(key) :], strict=True) if value}
        where = " ".join((f"{span_us // QUARTER_US} quarter-hours", *filter(None, row[1 : len(key)])))
        more = ", ".join(f"{value:+d} {name}" for name, value in missing.items())
        found.append(Drift(table.name, row.begins_us, where, more, "nothing of it"))
    return found


async def _balance_drift(connection: AsyncConnection) -> list[Drift]:
    key = (wallet_entries.c.team_id, wallet_entries.c.currency)
    entries = await _sums(connection, select(*key, func.sum(wallet_entries.c.amount_nano)).group_by(*key), 2)
    running = await _sums(connection, select(wallets.c.team_id, wallets.c.currency, wallets.c.balance_nano), 2)
    return _differences("wallets", None, entries, running)


async def _sums(connection: AsyncConnection, query: Select[Any], keys: int) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {tuple(row[:keys]): tuple(int(value) for value in row[keys:]) for row in await connection.execute(query)}


def _differences(
    what: str,
    bucket_us: int | None,
    rows: dict[tuple[str, ...], tuple[int, ...]],
    derived: dict[tuple[str, ...], tuple[int, ...]],
) -> list[Drift]:
    nothing: tuple[int, ...] = ()
    return [
        Drift(what, bucket_us, " ".join(key), _said(rows.get(key, nothing)), _said(derived.get(key, nothing)))
        for key in sorted(rows.keys() | derived.keys())
        if any(rows.get(key, nothing)) != any(derived.get(key, nothing))
        or (any(rows.get(key, nothing)) and rows.get(key) != derived.get(key))
    ]


def _said(values: tuple[int, ...]) -> str:
    return "/".join(map(str, values)) or "nothing"
