"""A range rated again: looked at first, entered exactly so, linked row by row, and every total moves by what was announced."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing import bulk_rerating
from billing.books import load_books
from billing.bulk_rerating import RerateRange, Rerating, apply_rerating, look, planned
from billing.corrections import correctable, reverse
from billing.database import open_database
from billing.drift import find_drift
from billing.errors import BillingError, Conflict, InvalidCorrection, InvalidQuery
from billing.ledger import record, usage_row
from billing.money import NANO
from billing.publishing import PriceDraft, publish_prices
from billing.reads import correction_chain
from billing.times import DAY_US
from billing.usage import Usage
from billing.wallets import check_wallet
from tests.billing.helpers import at, request_id
from tests.billing.world import World, make_world, request

MILLION = 1_000_000
START, END = at("2026-11-01T00:00:00Z"), at("2026-11-20T00:00:00Z")
DAY = "2026-11-10T12:00:00Z"
RANGE = RerateRange(START, END)
LATER = at("2026-11-25T00:00:00Z")


@pytest.fixture
async def world(sqlite_database: AsyncEngine) -> World:
    """Two requests at 0.42 and one at 8 CNY; then DeepSeek's output price of the ninth of November turns out to be 0.84."""
    world = await make_world(sqlite_database)
    await world.use("deepseek-chat", Usage(output=MILLION), DAY)
    await world.use("deepseek-chat", Usage(output=MILLION), "2026-11-08T12:00:00Z")
    await world.use("gpt-4.1", Usage(output=MILLION), DAY)
    return world


@pytest.fixture
async def both(database: AsyncEngine) -> World:
    """The same on SQLite and on PostgreSQL."""
    world = await make_world(database)
    await world.use("deepseek-chat", Usage(output=MILLION), DAY)
    await world.use("deepseek-chat", Usage(output=MILLION), "2026-11-08T12:00:00Z")
    await world.use("gpt-4.1", Usage(output=MILLION), DAY)
    return world


async def mend(world: World, amount: str = "0.84", since: str = "2026-11-09T00:00:00Z") -> None:
    draft = PriceDraft("deepseek", "deepseek-chat", "output", "USD", amount, at(since))
    async with world.engine.begin() as connection:
        await publish_prices(connection, [draft])


async def seen(world: World, asked: RerateRange = RANGE) -> Rerating:
    async with world.engine.connect() as connection:
        return await look(connection, asked, await load_books(connection), lambda provider: provider)


async def applied(world: World, plan: str, asked: RerateRange = RANGE) -> int:
    async with world.engine.connect() as connection:
        books = await load_books(connection)
        changes = await planned(connection, asked, books, lambda provider: provider, plan)
    async with world.engine.begin() as connection:
        return await apply_rerating(
            connection,
            changes,
            books,
            lambda provider: provider,
            lambda: request_id(LATER),
            reason="wrong price",
            actor="ann",
        )


async def total(world: World) -> int:
    """Rows, both rollups and the wallet: all the same figure."""
    async with world.engine.connect() as connection:
        wallet = await check_wallet(connection, world.team.id)
        assert wallet.agrees
    found = {
        await world.sum(f"SELECT sum(settled_nano) FROM {name}")
        for name in ("usage", "usage_lines", "rollup_money", "rollup_traffic")
    }
    assert found == {-wallet.balance_nano}
    return found.pop()


async def test_a_range_is_looked_at_and_entered_exactly_so(both: World) -> None:
    assert (await seen(both)).changed == 0
    before = await total(both)
    await mend(both)
    plan = await seen(both)
    assert (plan.requests, plan.changed, plan.unchanged, plan.without_price) == (3, 1, 2, 0)
    (row,) = plan.data
    assert (row.model, row.requests, row.actual.settled[0].amount, row.what_if.settled[0].amount) == (
        "deepseek-chat",
        1,
        "0.42",
        "0.84",
    )
    assert await total(both) == before, "a look writes nothing"
    assert await applied(both, plan.plan) == 1
    assert await total(both) - before == Fraction(row.difference[0].amount) * NANO
    async with both.engine.connect() as connection:
        link = (await connection.execute(text("SELECT original_id, reason, actor FROM corrections"))).one()
        original = request_id(0).__class__(bytes=link[0]) if isinstance(link[0], bytes) else link[0]
        assert (link.reason, link.actor) == ("wrong price", "ann")
        (chain,) = await correction_chain(connection, original)
        new = await usage_row(connection, original.__class__(chain.replacement))
    assert new is not None and new.settled is not None
    assert (new.kind, new.corrects, new.settled.amount) == ("correction", str(original), "0.84")
    assert (await seen(both)).changed == 0, "done is done"


async def test_a_second_wrong_price_corrects_the_correction_at_the_request_s_own_time(both: World) -> None:
    await mend(both)
    await applied(both, (await seen(both)).plan)
    await mend(both, "1.26", "2026-11-09T12:00:00Z")
    await mend(both, "9", "2026-11-15T00:00:00Z")
    plan = await seen(both)
    assert (plan.requests, plan.changed) == (3, 1)
    assert plan.data[0].difference[0].amount == "0.42"
    await applied(both, plan.plan)
    assert await total(both) == (126 + 42 + 800) * NANO // 100
    async with both.engine.connect() as connection:
        assert await find_drift(connection, 0, LATER + DAY_US) == []


async def test_what_changed_since_the_look_wants_another_one(world: World) -> None:
    before = await world.books()
    await mend(world)
    plan = await seen(world)
    await world.use("deepseek-chat", Usage(output=MILLION), DAY, books=before)
    with pytest.raises(Conflict, match="look again"):
        await applied(world, plan.plan)
    plan = await seen(world)
    await mend(world, "0.9", "2026-11-09T01:00:00Z")
    with pytest.raises(Conflict, match="look again"):
        await applied(world, plan.plan)
    with pytest.raises(Conflict, match="look again"):
        await applied(world, (await seen(world)).plan, RerateRange(START, END, model="gpt-4.1"))
    only = RerateRange(START, END, model="gpt-4.1")
    nothing = (await seen(world, only)).plan
    with pytest.raises(InvalidCorrection, match="nothing would change"):
        await applied(world, nothing, only)


async def test_two_operators_at_once_put_each_row_right_once(both: World) -> None:
    await mend(both)
    plan = (await seen(both)).plan
    done = await asyncio.gather(*(applied(both, plan) for _ in range(4)), return_exceptions=True)
    assert sum(each for each in done if isinstance(each, int)) == 1
    assert all(isinstance(each, int | Conflict) for each in done)
    assert await total(both) == (84 + 42 + 800) * NANO // 100


async def test_a_reversed_request_is_gone_and_one_that_would_lose_its_price_stays(world: World) -> None:
    gone = await world.use("deepseek-chat", Usage(output=MILLION), DAY)
    async with world.engine.begin() as connection:
        await correctable(connection, gone.id)
        await reverse(connection, gone.id, request_id(LATER), reason="test", actor="ann")
    books = await world.books()
    lost = request(books, world.team, "deepseek-chat", Usage(output=MILLION), DAY)
    async with world.engine.begin() as connection:
        await record(connection, [lost])
    assert (await seen(world)).requests == 4, "the reversed one is not among them"
    async with world.engine.connect() as connection:
        empty = books.__class__(books.prices.__class__([]), books.rates, books.terms)
        found = await look(connection, RANGE, empty, lambda provider: provider)
    assert (found.without_price, found.changed) == (4, 0)


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        (END, START, "end"),
        (START, START, "end"),
        (START - 93 * DAY_US, END, "end"),
        (START, at("2099-01-01T00:00:00Z"), "end"),
    ],
)
async def test_a_range_that_cannot_be_names_its_field(
    sqlite_database: AsyncEngine, start: int, end: int, field: str
) -> None:
    world = await make_world(sqlite_database)
    with pytest.raises(InvalidQuery) as refusal:
        await seen(world, RerateRange(start, end))
    assert refusal.value.field == field


async def test_a_range_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_rerating, "MOST_REQUESTS", 2)
    with pytest.raises(InvalidQuery, match="more than 2 requests"):
        await seen(world)
    monkeypatch.setattr(bulk_rerating, "MOST_REQUESTS", 3)
    monkeypatch.setattr(bulk_rerating, "MOST_CHANGES", 0)
    await mend(world)
    with pytest.raises(InvalidCorrection, match="more than 0"):
        await applied(world, (await seen(world)).plan)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    outputs=st.lists(st.integers(1, 5 * MILLION), min_size=1, max_size=6),
    prices=st.lists(st.integers(1, 10**7), min_size=1, max_size=3),
)
async def test_however_often_a_range_is_rated_again_the_books_agree_and_say_what_the_last_price_says(
    sqlite_url: str, outputs: list[int], prices: list[int]
) -> None:
    empty = make_url(sqlite_url).database or ""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_database(f"sqlite:///{shutil.copy(empty, folder)}")
        try:
            await rated_again_and_again(await make_world(engine), outputs, prices)
        finally:
            await engine.dispose()


async def rated_again_and_again(world: World, outputs: list[int], prices: list[int]) -> None:
    for output in outputs:
        await world.use("deepseek-chat", Usage(output=output), DAY)
    for number, micro in enumerate(prices):
        amount = f"{micro // MILLION}.{micro % MILLION:06d}"
        await mend(world, amount, f"2026-11-09T00:0{number}:00Z")
        try:
            await applied(world, (await seen(world)).plan)
        except BillingError:
            continue
    expected = sum(round(Fraction(output * prices[-1] * 1000, MILLION)) for output in outputs)
    assert await total(world) == expected
