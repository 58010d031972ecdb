"""Budgets: so much money per period for a key, a team or everybody."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.checks import parse_field
from billing.currencies import check_currency
from billing.database import bump_catalog_version
from billing.errors import InvalidBudget, NotFound
from billing.money import NANO
from billing.periods import PERIODS, period_bounds, zone_of
from billing.times import now_us

__all__ = ["BudgetRow", "create_budget", "end_budget", "get_budget", "list_budgets", "period_bounds"]

SCOPES: Final = ("team", "key", "all")
MOST_AT_ONCE: Final = 100
"""So many budgets may bound one team, one key or everybody at a time: each request reserves in all of them."""
MOST_THRESHOLDS: Final = 20
MOST_PERCENT: Final = 1000


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """`amount_nano` of `currency` per period of `timezone`. Hard: a request that could exceed it is refused; else it is only
    reported. Amount 0 allows nothing. An ended budget counts no more. At each of `thresholds`, percentages of the amount, it is
    told of once a period (None: at those that the installation tells of)."""

    id: int
    scope: str
    scope_id: str | None
    amount_nano: int
    currency: str
    period: str
    timezone: str
    hard: bool
    created_at_us: int = 0
    ended_at_us: int | None = None
    thresholds: tuple[int, ...] | None = None


async def create_budget(
    connection: AsyncConnection,
    *,
    scope: str,
    scope_id: str | None,
    amount: str,
    currency: str,
    period: str,
    timezone: str = "UTC",
    hard: bool = True,
    thresholds: Sequence[int] | None = None,
) -> BudgetRow:
    """Raises `InvalidBudget`, `InvalidAmount`, `InvalidCurrency`, `InvalidTime` or `NotFound`, each naming its field. A team's
    budget stands in its settlement currency. Whether a key exists is for the keeper of the keys to check."""
    if scope not in SCOPES:
        raise InvalidBudget(f"scope: {scope!r} is none of {', '.join(SCOPES)}", field="scope")
    if (scope == "all") != (scope_id is None):
        raise InvalidBudget("scope_id: name the team or key; leave it out for scope all", field="scope_id")
    if period not in PERIODS:
        raise InvalidBudget(f"period: {period!r} is none of {', '.join(PERIODS)}", field="period")
    check_currency(currency, "currency")
    zone_of(timezone)
    amount_nano = parse_field(amount, NANO, "amount")
    if amount_nano < 0:
        raise InvalidBudget("amount: cannot be negative", field="amount")
    if thresholds is not None and (
        len(thresholds) > MOST_THRESHOLDS or any(not 1 <= each <= MOST_PERCENT for each in thresholds)
    ):
        message = f"thresholds: at most {MOST_THRESHOLDS} percentages from 1 to {MOST_PERCENT}"
        raise InvalidBudget(message, field="thresholds")
    await bump_catalog_version(connection)
    if scope == "team":
        team = tables.teams.c
        settles_in = await connection.scalar(select(team.settlement_currency).where(team.id == scope_id))
        if settles_in is None:
            raise NotFound(f"scope_id: no team {scope_id!r}", field="scope_id")
        if settles_in != currency:
            raise InvalidBudget(
                f"currency: team {scope_id} settles in {settles_in}, not in {currency}", field="currency"
            )
    columns = tables.budgets.c
    same = (columns.scope == scope, columns.scope_id.is_not_distinct_from(scope_id), columns.ended_at_us.is_(None))
    if (await connection.scalar(select(func.count()).where(*same)) or 0) >= MOST_AT_ONCE:
        raise InvalidBudget(f"scope_id: {MOST_AT_ONCE} budgets bound it already; end one first", field="scope_id")
    values: dict[str, Any] = {
        "scope": scope,
        "scope_id": scope_id,
        "amount_nano": amount_nano,
        "currency": currency,
        "period": period,
        "timezone": timezone,
        "hard": hard,
        "created_at_us": now_us(),
    }
    told = None if thresholds is None else tuple(sorted(set(thresholds)))
    text = None if told is None else " ".join(map(str, told))
    statement = insert(tables.budgets).values(**values, thresholds=text).returning(tables.budgets.c.id)
    row_id = await connection.scalar(statement)
    assert row_id is not None
    return BudgetRow(id=row_id, **values, thresholds=told)


async def list_budgets(
    connection: AsyncConnection,
    after: int | None = None,
    limit: int | None = None,
    *,
    ended: bool = False,
    scope_ids: Collection[str] | None = None,
) -> list[BudgetRow]:
    """Budgets by id, from behind `after`; those that have ended only when asked for, and those over `scope_ids` alone where
    some are named."""
    table = tables.budgets
    query = select(table).order_by(table.c.id)
    if after is not None:
        query = query.where(table.c.id > after)
    if not ended:
        query = query.where(table.c.ended_at_us.is_(None))
    if scope_ids is not None:
        query = query.where(table.c.scope_id.in_(sorted(scope_ids)))
    if limit is not None:
        query = query.limit(limit)
    return [_row(row) for row in await connection.execute(query)]


async def get_budget(connection: AsyncConnection, budget_id: int) -> BudgetRow | None:
    found = await connection.execute(select(tables.budgets).where(tables.budgets.c.id == budget_id))
    row = found.one_or_none()
    return None if row is None else _row(row)


async def end_budget(connection: AsyncConnection, budget_id: int) -> BudgetRow:
    """End a budget; ending it twice changes nothing. Raises `NotFound`. To change an amount, end one and create another."""
    await bump_catalog_version(connection)
    table = tables.budgets
    await connection.execute(
        update(table).where(table.c.id == budget_id, table.c.ended_at_us.is_(None)).values(ended_at_us=now_us())
    )
    row = await get_budget(connection, budget_id)
    if row is None:
        raise NotFound(f"no budget {budget_id}", field="id")
    return row


def _row(row: Row[Any]) -> BudgetRow:
    text = row.thresholds
    told = None if text is None else tuple(map(int, text.split()))
    return BudgetRow(**{**row._mapping, "thresholds": told})
