"""Budgets are checked when set; what is spent comes out of the rollups."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow, create_budget, end_budget, get_budget, list_budgets, period_bounds
from billing.corrections import reverse
from billing.database import reading
from billing.errors import BillingError, NoRate, NotFound
from billing.exchange import RateBook, RateKind
from billing.ledger import record, spent
from billing.money import Money
from billing.spending import MOST
from billing.teams import create_team
from billing.usage import Usage
from tests.billing.helpers import NOON_US, at, rate_row, rated_record, request_id

BUDGET: dict[str, Any] = {
    "scope": "key",
    "scope_id": "key_a",
    "amount": "100.00",
    "currency": "CNY",
    "period": "month",
    "timezone": "Asia/Shanghai",
    "hard": True,
}


async def test_a_budget_is_kept_until_it_is_ended(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        budget = await create_budget(connection, **BUDGET)
        nothing = await create_budget(connection, **{**BUDGET, "amount": "0"})
    assert (budget.amount_nano, nothing.amount_nano) == (100 * 10**9, 0)
    async with database.begin() as connection:
        assert await list_budgets(connection) == [budget, nothing]
        ended = await end_budget(connection, budget.id)
        assert await end_budget(connection, budget.id) == ended
        assert await list_budgets(connection) == [nothing]
        assert await list_budgets(connection, ended=True) == [ended, nothing]
        assert await get_budget(connection, budget.id) == ended
        with pytest.raises(NotFound):
            await end_budget(connection, 99)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scope": "user"}, "scope"),
        ({"scope_id": None}, "scope_id"),
        ({"scope": "all"}, "scope_id"),
        ({"scope": "team", "scope_id": "team_none"}, "scope_id"),
        ({"amount": "-1"}, "amount"),
        ({"amount": "much"}, "amount"),
        ({"amount": "1e30"}, "amount"),
        ({"currency": "RMB"}, "currency"),
        ({"period": "year"}, "period"),
        ({"timezone": "Beijing"}, "timezone"),
    ],
)
async def test_a_budget_that_cannot_be_names_its_field(
    database: AsyncEngine, change: dict[str, Any], field: str
) -> None:
    async with database.begin() as connection:
        with pytest.raises(BillingError) as caught:
            await create_budget(connection, **{**BUDGET, **change})
    assert caught.value.field == field


async def test_a_teams_budget_stands_in_its_settlement_currency(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        team = await create_team(connection, name="search", settlement_currency="CNY")
        with pytest.raises(BillingError, match="settles in CNY, not in USD"):
            await create_budget(connection, **{**BUDGET, "scope": "team", "scope_id": team.id, "currency": "USD"})
        assert isinstance(
            await create_budget(connection, **{**BUDGET, "scope": "team", "scope_id": team.id}), BudgetRow
        )


async def test_rule_08_spending_is_counted_from_the_period_start_of_the_time_zone(database: AsyncEngine) -> None:
    million = Usage(output=1_000_000)
    requests = [
        rated_record(million, id_=request_id(at("2026-11-29T15:59:59Z"))),
        rated_record(million, id_=request_id(at("2026-11-29T16:00:00Z"))),
        rated_record(million, id_=request_id(at("2026-11-30T03:00:00Z")), key="key_b"),
        rated_record(million, id_=request_id(at("2026-11-30T04:00:00Z")), key="key_b", status="failed"),
        rated_record(million, id_=request_id(at("2026-11-30T05:00:00Z")), team="team_b", key="key_c", currency="USD"),
    ]
    async with database.begin() as connection:
        await record(connection, requests)
    start, end = period_bounds("day", "Asia/Shanghai", NOON_US)
    rates = RateBook([rate_row(2, "USD/CNY", RateKind.REFERENCE, "6.6529", "2026-11-27T15:00:00Z")])
    async with reading(database) as connection:
        assert await spent(connection, "team", "team_a", "CNY", start, end) == Money.parse("1.26", "CNY")
        assert await spent(connection, "key", "key_b", "CNY", start, end) == Money.parse("0.84", "CNY")
        assert await spent(connection, "key", "key_a", "CNY", 0) == Money.parse("0.84", "CNY")
        assert await spent(connection, "team", "team_b", "CNY", 0) == Money("CNY", 0)
        assert await spent(connection, "all", None, "USD", start) == Money.parse("1.68", "USD")
        # three rows at their own reference rate, the fourth (settled in USD) at the book's
        assert await spent(connection, "all", None, "CNY", start, rates=rates) == Money.parse("11.176872", "CNY")
        with pytest.raises(NoRate, match="from USD to CNY"):
            await spent(connection, "all", None, "CNY", start)


async def test_rule_05_a_charge_beyond_64_bits_leaves_no_budget_any_room_until_it_is_put_right(
    database: AsyncEngine,
) -> None:
    """Law: what cannot be written as an amount counts as the most that one can be, never as nothing."""
    row = rated_record(Usage(output=10**17))
    assert row.rated.overflow and row.rated.settled is None
    day = (NOON_US - 43_200_000_000, NOON_US + 43_200_000_000)
    rates = RateBook([rate_row(1, "USD/CNY", RateKind.REFERENCE, "7")])
    scopes = (("team", "team_a"), ("key", "key_a"), ("all", None))
    async with database.begin() as connection:
        await record(connection, [row, rated_record(Usage(output=1000))])
    async with reading(database) as connection:
        for scope, scope_id in scopes:
            assert await spent(connection, scope, scope_id, "CNY", *day, rates) == Money("CNY", MOST)
            assert await spent(connection, scope, scope_id, "CNY", day[1], None, rates) == Money("CNY", 0)
        assert await spent(connection, "team", "team_b", "CNY", *day) == Money("CNY", 0)
    async with database.begin() as connection:
        await reverse(connection, row.id, request_id(NOON_US + 1000), reason="a slip of the provider", actor="ops")
    async with reading(database) as connection:
        assert await spent(connection, "team", "team_a", "CNY", *day) == Money("CNY", 420_000)


async def test_a_sum_beyond_64_bits_is_the_most_that_a_budget_can_have_spent(database: AsyncEngine) -> None:
    """Each team's fits; SQLite cannot add them up, PostgreSQL can."""
    rows = [rated_record(Usage(output=2 * 10**16), team=team) for team in ("team_a", "team_b")]
    async with database.begin() as connection:
        assert (await record(connection, rows)).inserted == 2
    async with reading(database) as connection:
        assert (await spent(connection, "all", None, "USD", NOON_US)).nano >= MOST
