"""A past range under another book, other terms or another route: a table of differences, and nothing moves."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.corrections import reverse
from billing.differences import Difference
from billing.errors import BillingError, InvalidQuery
from billing.publishing import PriceDraft, publish_prices
from billing.usage import Usage
from billing.what_if import Alternative, OtherRoute, OtherTerms, what_if
from tests.billing.helpers import at, request_id
from tests.billing.world import World, make_world

MILLION = 1_000_000
START, END = at("2026-09-01T00:00:00Z"), at("2026-10-01T00:00:00Z")
NOON = "2026-09-10T12:00:00Z"


@pytest.fixture
async def world(database: AsyncEngine) -> World:
    world = await make_world(database)
    await world.use("deepseek-chat", Usage(output=MILLION), NOON)
    await world.use("gpt-4.1", Usage(input=MILLION, output=MILLION), NOON)
    await world.use("gpt-4.1", Usage(output=MILLION), "2026-10-01T00:00:00Z")
    return world


async def ask(world: World, **change: Any) -> dict[str, Difference]:
    async with world.engine.connect() as connection:
        found = await what_if(connection, Alternative(**change), START, END)
    return {each.model: each for each in found}


def amounts(each: Difference) -> tuple[str, str, str]:
    (actual,), (other,), (apart,) = each.actual.settled, each.what_if.settled, each.difference
    assert {actual.currency, other.currency, apart.currency} == {"CNY"}
    return actual.amount, other.amount, apart.amount


async def test_other_terms_change_what_is_settled_and_not_the_list(world: World) -> None:
    found = await ask(world, terms=OtherTerms("fixed", "USD", "CNY", rate="7.3"))
    assert {model: amounts(each) for model, each in found.items()} == {
        "deepseek-chat": ("0.42", "3.066", "2.646"),
        "gpt-4.1": ("10", "73", "63"),
    }
    assert found["gpt-4.1"].what_if.list == found["gpt-4.1"].actual.list
    assert (found["gpt-4.1"].requests, found["gpt-4.1"].tokens) == (1, 2 * MILLION)


async def test_another_route_is_priced_on_its_own_list(world: World) -> None:
    found = await ask(world, route=OtherRoute("deepseek", "deepseek", "deepseek-chat"))
    assert amounts(found["gpt-4.1"]) == ("10", "0.7", "-9.3")
    assert amounts(found["deepseek-chat"]) == ("0.42", "0.42", "0")


async def test_drafted_prices_hold_for_the_whole_range_whenever_they_start(world: World) -> None:
    draft = PriceDraft("openai", "gpt-4.1", "output", "USD", "4", at("2030-01-01T00:00:00Z"))
    found = await ask(world, prices=(draft,))
    assert amounts(found["gpt-4.1"]) == ("10", "6", "-4")
    assert amounts(found["deepseek-chat"]) == ("0.42", "0.42", "0")


async def test_prices_of_another_moment_and_of_another_version(world: World) -> None:
    async with world.engine.begin() as connection:
        rows = [PriceDraft("deepseek", "deepseek-chat", "output", "USD", "0.21", at("2026-11-01T00:00:00Z"))]
        (row,) = await publish_prices(connection, rows)
    assert amounts((await ask(world, priced_at_us=at("2026-11-02T00:00:00Z")))["deepseek-chat"]) == (
        "0.42",
        "0.21",
        "-0.21",
    )
    before = await ask(world, priced_at_us=at("2026-11-02T00:00:00Z"), version=row.book_version - 1)
    assert amounts(before["deepseek-chat"]) == ("0.42", "0.42", "0")
    old = await ask(world, version=0)
    assert (old["gpt-4.1"].what_if.unpriced, old["gpt-4.1"].what_if.settled) == (1, ())


async def test_what_was_put_right_is_taken_as_it_was_put_right(world: World) -> None:
    wrong = await world.use("deepseek-chat", Usage(output=5 * MILLION), NOON)
    async with world.engine.begin() as connection:
        await reverse(connection, wrong.id, request_id(at(NOON)), reason="test", actor="test")
    found = await ask(world, terms=OtherTerms("fixed", "USD", "CNY", rate="7.3"))
    assert amounts(found["deepseek-chat"]) == ("0.42", "3.066", "2.646")


async def test_rule_07_asking_changes_nothing(world: World) -> None:
    async def held() -> list[Any]:
        tables = ("usage", "usage_lines", "price_rows", "terms_rows", "rollup_money")
        async with world.engine.connect() as connection:
            return [sorted(map(repr, await connection.execute(text(f"SELECT * FROM {name}")))) for name in tables]

    before = await held()
    draft = PriceDraft("openai", "gpt-4.1", "output", "USD", "4", START)
    await ask(world, prices=(draft,), terms=OtherTerms("fixed", "USD", "CNY", rate="2"))
    assert await held() == before


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, "prices"),
        ({"version": 99}, "version"),
        ({"terms": OtherTerms("fixed", "USD", "RMB", rate="1")}, "terms.quote"),
        ({"terms": OtherTerms("fixed", "USD", "CNY", rate="-1")}, "rate"),
        ({"terms": OtherTerms("barter", "USD", "CNY")}, "policy"),
        ({"prices": (PriceDraft("p", "m", "output", "USD", "1" + "0" * 30, START),)}, "amount_per_mtok"),
        ({"prices": (PriceDraft("p", "m", "output", "USD", "1", START),) * 2}, "prices"),
    ],
)
async def test_an_alternative_that_cannot_be_names_its_field(
    database: AsyncEngine, change: dict[str, Any], field: str
) -> None:
    async with database.connect() as connection:
        with pytest.raises(BillingError) as refusal:
            await what_if(connection, Alternative(**change), START, END)
    assert refusal.value.field == field


async def test_a_range_is_bounded(database: AsyncEngine) -> None:
    async with database.connect() as connection:
        for start_us, end_us in ((END, START), (START, at("2027-09-01T00:00:00Z"))):
            with pytest.raises(InvalidQuery, match="92 days"):
                await what_if(connection, Alternative(version=0), start_us, end_us)
