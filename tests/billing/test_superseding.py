"""A price that was published wrong: the same body again changes nothing, another is a conflict unless it supersedes."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import load_books
from billing.bulk_rerating import RerateRange, look
from billing.credit_notes import credit_part, credit_statement
from billing.errors import Conflict, InvalidTime
from billing.ledger import usage_row
from billing.price_drafts import preview_prices
from billing.prices import PriceBook, PriceRow
from billing.publishing import PriceDraft, publish_prices
from billing.rating import AttemptUsage, Payer, rate_in_full
from billing.times import DAY_US
from billing.usage import TokenClass, Usage
from tests.billing.helpers import NOON_US, at
from tests.billing.world import World, make_world

START = at("2026-11-01T00:00:00Z")
DAY = "2026-11-10T12:00:00Z"


@pytest.fixture
async def world(sqlite_database: AsyncEngine) -> World:
    return await make_world(sqlite_database)


@pytest.fixture
async def both(database: AsyncEngine) -> World:
    """The same on SQLite and on PostgreSQL."""
    return await make_world(database)


async def post(world: World, amount: str, *, supersede: bool = False, start: int = START) -> PriceRow:
    draft = PriceDraft("deepseek", "deepseek-chat", "output", "USD", amount, start)
    async with world.engine.begin() as connection:
        return (await publish_prices(connection, [draft], supersede=supersede))[0]


async def prices(world: World) -> PriceBook:
    return (await world.books()).prices


def found(book: PriceBook, version: int) -> str:
    row = book.find("deepseek", "deepseek-chat", TokenClass.OUTPUT, at_us=NOON_US, version=version)
    assert row is not None
    return str(row.amount_micro)


async def test_the_same_body_again_is_the_same_row_and_no_version(world: World) -> None:
    first = await post(world, "4.2")
    assert await post(world, "4.20") == first == await post(world, "4.2", supersede=True)
    assert (await prices(world)).version == first.book_version


async def test_another_amount_is_a_conflict_that_says_how_to_go_on(world: World) -> None:
    await post(world, "4.2")
    with pytest.raises(Conflict) as refusal:
        await post(world, "0.42")
    for advice in ("start later", "supersede", "rate again", "draft"):
        assert advice in str(refusal.value)
    assert refusal.value.field == "effective_from"


async def test_a_superseded_row_stays_for_those_who_pinned_it_and_nobody_else(both: World) -> None:
    wrong = await post(both, "4.2")
    before = await both.books()
    used = await both.use("deepseek-chat", Usage(output=1_000_000), DAY)
    right = await post(both, "0.42", supersede=True)
    book = await prices(both)
    assert (right.book_version, found(book, wrong.book_version), found(book, book.version)) == (
        wrong.book_version + 1,
        "4200000",
        "420000",
    )
    assert [(row.id, why) for row, why in book.explain(
        "deepseek", "deepseek-chat", TokenClass.OUTPUT, at_us=NOON_US, version=book.version
    )][:2] == [(right.id, "applies"), (wrong.id, "closed by a later row or by a higher threshold")]  # fmt: skip
    async with both.engine.connect() as connection:
        row = await usage_row(connection, used.id)
        assert row is not None and row.settled is not None
        assert (row.settled.amount, row.price_rows[0].id) == ("4.2", wrong.id), "a past row never moves"
        seen = await look(
            connection, RerateRange(START, NOON_US), await load_books(connection), lambda provider: provider
        )
    assert [each.difference[0].amount for each in seen.data] == ["-3.78"]
    late = await both.use("deepseek-chat", Usage(output=1_000_000), DAY, books=before)
    assert late.rated.settled is not None
    assert late.rated.settled.amount == "4.2", "written late, and rated with what it had pinned"
    again = await post(both, "0.5", supersede=True)
    assert found(await prices(both), again.book_version) == "500000"


async def test_plans_and_the_long_way_agree_about_superseded_rows(world: World) -> None:
    await post(world, "4.2")
    await post(world, "0.42", supersede=True)
    made = await world.use("deepseek-chat", Usage(output=77), DAY)
    books = await world.books()
    attempt = AttemptUsage(1, "deepseek", "deepseek-chat", "deepseek", Usage(output=77))
    payer = Payer(world.team.id, "CNY")
    whole = rate_in_full(books, books.pins(), at_us=at(DAY), payer=payer, charged=attempt, attempts=[attempt])
    assert made.rated == whole


async def test_a_preview_compares_with_the_newest_of_two(world: World) -> None:
    await post(world, "4.2")
    right = await post(world, "0.42", supersede=True)
    draft = PriceDraft("deepseek", "deepseek-chat", "output", "USD", "0.42", START)
    (previewed,) = preview_prices(await prices(world), [draft])
    assert (previewed.change, previewed.before) == ("standing", right)


async def test_four_that_supersede_at_once_make_a_chain_and_no_two_rows_share_a_version(both: World) -> None:
    await post(both, "4.2")
    rows = await asyncio.gather(*(post(both, f"0.{number}", supersede=True) for number in range(1, 5)))
    assert len({row.book_version for row in rows}) == 4
    newest = max(rows, key=lambda row: row.id)
    assert found(await prices(both), newest.book_version) == str(newest.amount_micro)


async def test_an_issued_month_is_closed_for_superseding_prices_too(world: World) -> None:
    await post(world, "4.2", start=at("2026-09-05T00:00:00Z"))
    await world.use("deepseek-chat", Usage(output=1), "2026-09-10T12:00:00Z")
    await world.issue("2026-09")
    with pytest.raises(InvalidTime, match="statement is issued"):
        await post(world, "0.42", supersede=True, start=at("2026-09-05T00:00:00Z"))


async def test_a_month_that_was_taken_back_is_open_again(both: World) -> None:
    await both.use("deepseek-chat", Usage(output=1_000_000), "2026-09-10T12:00:00Z")
    issued = await both.issue("2026-09")
    start = at("2026-09-05T00:00:00Z")
    async with both.engine.begin() as connection:
        await credit_part(connection, both.team.id, issued.id, reason="outage", actor="ann", amount="0.01")
    with pytest.raises(InvalidTime):
        await post(both, "0.21", start=start)
    async with both.engine.begin() as connection:
        await credit_statement(connection, both.team.id, issued.id, reason="wrong price", actor="ann")
    await post(both, "0.21", start=start)
    async with both.engine.connect() as connection:
        seen = await look(
            connection, RerateRange(start, NOON_US - DAY_US), await load_books(connection), lambda provider: provider
        )
    assert [each.difference[0].amount for each in seen.data] == ["-0.21"]


async def test_a_published_row_refuses_to_be_changed_even_so(both: World) -> None:
    await post(both, "4.2")
    for change in ("UPDATE price_rows SET amount_micro = 1", "DELETE FROM price_rows"):
        async with both.engine.connect() as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                await connection.execute(text(change))
