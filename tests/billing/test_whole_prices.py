"""Law: rows = rollups = wallet = statement, for requests of which the book prices a part, all or nothing, before and after it is
mended."""

from __future__ import annotations

from itertools import combinations

from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.drift import find_drift
from billing.ledger import record
from billing.money import NANO, Money
from billing.publishing import PriceDraft, publish_prices
from billing.rerating import rerate
from billing.times import now_us
from billing.usage import Usage
from billing.wallets import check_wallet
from tests.billing.helpers import at, request_id
from tests.billing.world import World, make_world, request

DAY, LATER, START = "2026-11-10T12:00:00Z", "2026-11-12T12:00:00Z", at("2026-01-01T00:00:00Z")
PRICES = {"input": "1", "output": "2", "cache_read": "0.5", "request": "0.5"}
SOME = [kinds for size in range(len(PRICES) + 1) for kinds in combinations(PRICES, size)]
USED = Usage(input=1_000_000, output=1_000_000, cache_read=1_000_000)


async def publish(world: World, model: str, kinds: tuple[str, ...]) -> None:
    drafts = [
        PriceDraft("nobody", model, each, "USD", PRICES[each], START, "request" if each == "request" else None)
        for each in kinds
    ]
    if drafts:
        async with world.engine.begin() as connection:
            await publish_prices(connection, drafts)


async def agreed(world: World) -> int:
    """What rows, both rollups, wallet and statement all say, in nano."""
    async with world.engine.begin() as connection:
        assert [str(each) for each in await find_drift(connection, START, now_us())] == []
        check = await check_wallet(connection, world.team.id)
        row_nano = await connection.scalar(text("SELECT SUM(settled_nano) FROM usage"))
        money_nano = await connection.scalar(text("SELECT SUM(settled_nano) FROM rollup_money"))
    settled = (await world.draft("2026-11")).document.totals.settled
    assert settled is not None
    stated_nano = Money.parse(settled.amount, settled.currency).nano
    assert check.agrees and check.balance_nano == -check.usage_rollup_nano
    assert {int(row_nano or 0), int(money_nano or 0), stated_nano} == {check.usage_rollup_nano}
    return check.usage_rollup_nano


async def test_a_request_is_priced_whole_or_not_at_all_in_every_book_until_it_is_put_right(
    database: AsyncEngine,
) -> None:
    world = await make_world(database)
    expected, mended = 0, 0
    unpriced = []
    for at_, kinds in enumerate(SOME):
        await publish(world, f"m{at_}", kinds)
        made = await world.use(f"m{at_}", USED, DAY)
        whole = kinds == ("request",) or {"input", "output", "cache_read"} <= set(kinds)
        assert (made.rated.settled is not None, made.rated.unpriced is None) == (whole, whole)
        if made.rated.settled is not None:
            expected += made.rated.settled.nano
        else:
            unpriced.append((made.id, f"m{at_}", tuple(each for each in PRICES if each not in {*kinds, "request"})))
            mended += (350 + 50 * ("request" in kinds)) * NANO // 100
    assert await agreed(world) == expected == (50 + 350 + 400) * NANO // 100
    for row_id, model, missing in unpriced:
        await publish(world, model, missing)
        ids = request_id(at(LATER)), request_id(at(LATER))
        async with database.begin() as connection:
            await rerate(connection, row_id, ids, reason="test", actor="ann", price_list_of=lambda provider: provider)
    assert await agreed(world) == expected + mended


async def test_reconciliation_sees_a_statement_that_would_charge_what_no_row_settled(database: AsyncEngine) -> None:
    world = await make_world(database)
    made = request(await world.books(), world.team, "m", USED, DAY)
    lines = tuple([replace(line, settled_nano=500) for line in made.rated.lines[:1]])
    async with database.begin() as connection:
        await record(connection, [replace(made, rated=replace(made.rated, lines=lines))])
        drift = [
            each for each in await find_drift(connection, START, now_us()) if each.where == f"{world.team.id} m CNY"
        ]
    assert [(each.what, each.rows, each.derived) for each in drift] == [("rollup_money", "0", "500")]
