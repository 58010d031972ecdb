"""Own engine or bought tokens: exact figures of a report for one hour of traffic."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.break_even import BreakEven, break_even, hourly_price
from billing.errors import BillingError, NoPrice
from billing.ledger import record
from billing.money import Money
from billing.publishing import PriceDraft, publish_prices
from billing.times import HOUR_US
from billing.usage import Usage
from tests.billing import world as worlds
from tests.billing.helpers import at
from tests.billing.world import World, make_world, request

MILLION = 1_000_000
START = at("2026-09-10T12:00:00Z")


@pytest.fixture
async def world(database: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> World:
    """In ten hours the engine served 2 million input, 1 million cached and 1 million output tokens in half an hour."""
    monkeypatch.setitem(worlds.ROUTES, "own", "metergate")
    world = await make_world(database)
    books = await world.books()
    usage = Usage(input=MILLION, cache_read=MILLION // 2, output=MILLION // 2, compute_us=HOUR_US // 4)
    made = [request(books, world.team, "own", usage, START + each * HOUR_US) for each in range(2)]
    async with database.begin() as connection:
        await record(connection, made)
    return world


async def report(world: World, cost: Money, provider: str = "metergate", hours: int = 10) -> BreakEven:
    async with world.engine.connect() as connection:
        return await break_even(
            connection,
            await world.books(),
            provider=provider,
            cost_per_hour=cost,
            start_us=START,
            end_us=START + hours * HOUR_US,
            at_us=at("2026-11-01T00:00:00Z"),
        )


async def test_the_engine_s_cost_per_million_tokens_beside_each_upstream(world: World) -> None:
    found = await report(world, Money.parse("2", "USD"))
    assert (found.requests, found.tokens) == (2, {"input": 2 * MILLION, "cache_read": MILLION, "output": MILLION})
    assert (found.hours, found.compute_hours, found.utilisation_percent) == ("10", "0.5", "5")
    assert (found.elapsed_cost.amount, found.elapsed_cost_per_mtok.amount) == ("20", "5")
    assert found.busy_cost is not None
    assert found.busy_cost_per_mtok is not None
    assert (found.busy_cost.amount, found.busy_cost_per_mtok.amount) == ("1", "0.25")
    assert (found.tokens_per_hour, found.capacity_tokens_per_hour) == (400_000, 8 * MILLION)
    table = {each.model: each for each in found.upstreams}
    # 2 x 0.28 + 1 x 0.028 + 1 x 0.42 = 1.008 USD for 4 million tokens, 0.252 a million
    deepseek = table["deepseek-chat"]
    assert (deepseek.cost.amount, deepseek.cost_per_mtok.amount, deepseek.cheaper) == ("1.008", "0.252", "upstream")
    # 2 USD an hour buy 2 / 0.252 = 7.936507… million tokens of it
    assert (deepseek.break_even_tokens_per_hour, deepseek.break_even_percent) == (7_936_508, "99.21")
    # 2 x 3 + 0.30 + 15 = 21.3
    assert (table["claude-sonnet-4-5"].cost.amount, table["claude-sonnet-4-5"].cheaper) == ("21.3", "engine")
    assert [each.model for each in found.upstreams][-1] == "claude-sonnet-4-5"
    assert "smollm2-135m-instruct" not in table, "the engine is not compared with itself"


async def test_upstreams_without_a_way_into_the_currency_are_left_out(world: World) -> None:
    found = await report(world, Money.parse("14", "CNY"))
    assert found.upstreams == ()


async def test_the_hourly_price_comes_from_the_engine_s_price_list(world: World) -> None:
    books = await world.books()
    with pytest.raises(NoPrice) as refusal:
        hourly_price(books, "metergate", START)
    assert refusal.value.field == "cost_per_hour"
    async with world.engine.begin() as connection:
        draft = PriceDraft("gpu", "own", "request", "USD", "3.50", at("2026-01-01T00:00:00Z"), unit="hour")
        await publish_prices(connection, [draft])
    assert hourly_price(await world.books(), "gpu", START) == Money.parse("3.5", "USD")


@pytest.mark.parametrize(
    ("cost", "provider", "hours", "field"),
    [
        ("0", "metergate", 10, "cost_per_hour"),
        ("1", "nobody", 10, "provider"),
        ("1", "metergate", 0, "end"),
        ("1", "metergate", 24 * 93, "end"),
    ],
)
async def test_a_report_that_cannot_be_names_its_field(
    world: World, cost: str, provider: str, hours: int, field: str
) -> None:
    with pytest.raises(BillingError) as refusal:
        await report(world, Money.parse(cost, "USD"), provider, hours)
    assert refusal.value.field == field
