"""Any range and filter as FOCUS rows: the specification's rules hold, and the rows sum to the ledger."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from fractions import Fraction

import pytest
from msgspec import structs
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.corrections import reverse
from billing.database import open_database
from billing.errors import InvalidQuery, InvalidTime
from billing.focus import FocusRow
from billing.focus_checks import focus_faults
from billing.focus_export import (
    FocusQuery,
    focus_months,
    focus_spans,
    focus_teams,
    read_piece,
    rows_of_piece,
    used_quarters,
)
from billing.ledger import list_usage, record
from billing.money import NANO, format_scaled, parse_scaled
from billing.reads import UsageFilters
from billing.teams import create_team
from billing.times import DAY_US, QUARTER_US
from billing.usage import Usage
from tests.billing.helpers import at, request_id
from tests.billing.world import ROUTES, World, make_world, request

FIRST, DAYS = at("2026-09-25T00:00:00Z"), 14
KEYS = ("key_a", "key_b")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    """Two weeks over a month's end of two teams in two currencies and zones, one request taken back and one unpriced."""
    engine = open_database(database_url)
    made = await make_world(engine, "Asia/Shanghai")
    async with engine.begin() as connection:
        ads = await create_team(connection, name="ads", settlement_currency="USD", timezone="America/New_York")
    books, chance = await made.books(), random.Random(5)
    rows = []
    for number in range(120):
        usage = Usage(input=chance.randint(1, 9_999), cache_read=chance.randint(0, 99), output=chance.randint(1, 999))
        moment = FIRST + chance.randrange(DAYS * DAY_US)
        team = made.team if number % 3 else ads
        model = "a-model-nobody-prices" if number % 40 == 7 else chance.choice(list(ROUTES))
        rows.append(structs.replace(request(books, team, model, usage, moment), key_id=KEYS[number % 2]))
    async with engine.begin() as connection:
        await record(connection, rows)
        await reverse(connection, rows[4].id, request_id(FIRST + 9 * DAY_US), reason="test", actor="test")
    yield made
    await engine.dispose()


async def rows_of(engine: AsyncEngine, asked: FocusQuery) -> list[FocusRow]:
    async with engine.connect() as connection:
        return [
            row
            for team in await focus_teams(connection, asked)
            for month in focus_months(asked, team)
            for spans in focus_spans(asked, month, await used_quarters(connection, team, month))
            for row in rows_of_piece(await read_piece(connection, asked, team, spans))
        ]


async def ledger(engine: AsyncEngine, asked: FocusQuery) -> dict[str, int]:
    """What every single row of the range says was settled, by currency."""
    filters = UsageFilters(
        asked.team_id, asked.key_id, asked.model, asked.provider, start_us=asked.start_us, end_us=asked.end_us
    )
    sums: dict[str, int] = {}
    async with engine.connect() as connection:
        cursor = None
        while True:
            page = await list_usage(connection, filters, cursor, 50)
            for row in page.data:
                if row.settled is not None:
                    nano = parse_scaled(row.settled.amount, NANO, "settled")
                    sums[row.settled.currency] = sums.get(row.settled.currency, 0) + nano
            cursor = page.next_cursor
            if cursor is None:
                return sums


async def test_rule_10_any_range_and_filter_sums_to_the_ledgers_rows_and_breaks_no_rule_of_focus(world: World) -> None:
    chance = random.Random(11)
    whole = FocusQuery(FIRST, FIRST + DAYS * DAY_US, team_id=world.team.id)
    asks = [whole, but(whole, team_id=None), but(whole, key_id="key_a", key_name="a")]
    for _ in range(12):
        start = FIRST + chance.randrange(DAYS * 96) * QUARTER_US
        end = min(start + (1 + chance.randrange(96 * 9)) * QUARTER_US, FIRST + DAYS * DAY_US)
        if end <= start:
            continue
        asks.append(
            FocusQuery(
                start,
                end,
                chance.choice(("hour", "day", "month")),
                chance.choice(("UTC", "Asia/Kolkata", "America/New_York")),
                world.team.id,
                chance.choice((None, *KEYS)),
                "the key",
                chance.choice((None, *ROUTES)),
                chance.choice((None, None, "openai")),
            )
        )
    shown = 0
    for asked in asks:
        rows = await rows_of(world.engine, asked)
        sums = await ledger(world.engine, asked)
        for currency in {row["BillingCurrency"] for row in rows}:
            mine = [row for row in rows if row["BillingCurrency"] == currency]
            assert focus_faults(mine, format_scaled(sums.get(str(currency), 0), NANO)) == [], asked
        assert {each for each in sums if sums[each]} <= {row["BillingCurrency"] for row in rows}, asked
        shown += len(rows)
        if asked.key_id is not None:
            assert {(row["SubAccountId"], row["SubAccountName"]) for row in rows} <= {(asked.key_id, asked.key_name)}
    assert shown > 400


def but(asked: FocusQuery, **changes: str | None) -> FocusQuery:
    fields = {name: getattr(asked, name) for name in FocusQuery.__dataclass_fields__}
    return FocusQuery(**{**fields, **changes})


async def test_by_rows_and_by_rollups_is_the_same(world: World) -> None:
    """Of one key out of its rows, of the team out of the rollups: the keys' files add up to the team's."""
    asked = FocusQuery(FIRST, FIRST + DAYS * DAY_US, team_id=world.team.id)
    team = await rows_of(world.engine, asked)
    keys = [row for key in KEYS for row in await rows_of(world.engine, but(asked, key_id=key))]
    columns = ("ServiceName", "x_TokenClass", "ChargePeriodStart", "SkuPriceId", "x_RateIds")
    for name in ("BilledCost", "x_Requests", "x_ConsumedQuantity"):
        sums: list[dict[tuple[str | None, ...], Fraction]] = [{}, {}]
        for found, rows in zip(sums, (team, keys), strict=True):
            for row in rows:
                group = tuple(row[column] for column in columns)
                found[group] = found.get(group, Fraction(0)) + Fraction(row[name] or "0")
        assert {each: value for each, value in sums[0].items() if value} == {
            each: value for each, value in sums[1].items() if value
        }


async def test_a_span_never_runs_over_the_month_that_its_team_is_billed_by(world: World) -> None:
    await world.use("gpt-4.1", Usage(input=5), "2026-09-30T20:00:00Z")
    rows = await rows_of(world.engine, FocusQuery(FIRST, FIRST + DAYS * DAY_US, "month", "UTC", world.team.id))
    starts = {row["ChargePeriodStart"] for row in rows}
    assert starts == {"2026-09-25T00:00:00Z", "2026-09-30T16:00:00Z", "2026-10-01T00:00:00Z"}
    assert {row["BillingPeriodStart"] for row in rows} == {"2026-08-31T16:00:00Z", "2026-09-30T16:00:00Z"}


async def test_spans_and_teams_without_usage_are_not_asked_for(world: World) -> None:
    """400 days by the hour are 9,600 spans for each team: asked for one by one, a file stays silent for minutes."""
    async with world.engine.begin() as connection:
        for number in range(20):
            await create_team(connection, name=f"quiet {number}", settlement_currency="USD")
    asked = FocusQuery(FIRST - 380 * DAY_US, FIRST + 20 * DAY_US, "hour")
    queries: list[str] = []
    event.listen(world.engine.sync_engine, "before_cursor_execute", lambda *args: queries.append(args[2]))
    rows = await rows_of(world.engine, asked)
    hours = {(row["BillingAccountId"], row["ChargePeriodStart"]) for row in rows}
    assert len(hours) > 50
    assert len(queries) < len(hours)


async def test_a_range_that_cannot_be_is_refused_by_name(world: World) -> None:
    for asked, field in (
        (FocusQuery(FIRST + 1, FIRST + DAY_US), "start"),
        (FocusQuery(FIRST, FIRST), "end"),
        (FocusQuery(FIRST, FIRST + 2000 * DAY_US), "end"),
        (FocusQuery(FIRST, FIRST + DAY_US, "week"), "interval"),
        (FocusQuery(FIRST, FIRST + DAY_US, "day", "Mars/Olympus"), "timezone"),
    ):
        with pytest.raises((InvalidQuery, InvalidTime)) as refused:
            await rows_of(world.engine, asked)
        assert refused.value.field == field
