"""Credit notes over a part: never more than is left, numbered and hashed as everything issued, and the wallet agrees."""

from __future__ import annotations

import asyncio
import csv
import io
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.credit_notes import credit_part, credit_statement
from billing.errors import BillingError, Conflict, InvalidAmount, InvalidQuery
from billing.focus_checks import focus_faults
from billing.money import NANO, Money
from billing.statement_csv import statement_csv
from billing.statement_documents import nano_of
from billing.statement_focus import statement_focus
from billing.statements import StatementRow, broken_links, get_statement, list_statements
from billing.teams import create_team
from billing.usage import Usage
from billing.wallets import check_wallet
from tests.billing.world import ROUTES, World, make_world, settle_one_to_one

MILLION = 1_000_000
DAY = "2026-09-10T12:00:00Z"
CENT = NANO // 100


@pytest.fixture
async def world(sqlite_database: AsyncEngine) -> World:
    return await make_world(sqlite_database)


@pytest.fixture
async def both(database: AsyncEngine) -> World:
    """The same on SQLite and on PostgreSQL."""
    return await make_world(database)


async def stated(world: World, output: int = MILLION) -> StatementRow:
    """An issued month with four lines: 15, 8, 2.50 and 0.42 CNY for a million tokens."""
    for model in ROUTES:
        await world.use(model, Usage(output=output), DAY)
    return await world.issue("2026-09")


async def part(world: World, of: StatementRow, *lines: int, amount: str | None = None) -> StatementRow:
    async with world.engine.begin() as connection:
        return await credit_part(
            connection, world.team.id, of.id, reason="outage", actor="ann", lines=lines, amount=amount
        )


async def whole(world: World, of: StatementRow) -> StatementRow:
    async with world.engine.begin() as connection:
        return await credit_statement(connection, world.team.id, of.id, reason="wrong", actor="ann")


async def balance(world: World) -> int:
    async with world.engine.connect() as connection:
        checked = await check_wallet(connection, world.team.id)
    assert checked.agrees
    return checked.balance_nano


def position(row: StatementRow, model: str) -> int:
    return next(line.position for line in row.document.lines if line.model == model)


async def test_a_line_and_an_amount_are_credited_numbered_and_hashed(both: World) -> None:
    first = await stated(both)
    before = await balance(both)
    line = position(first, "gpt-4.1")
    one, two = await part(both, first, line), await part(both, first, amount="1.5")
    assert [(each.kind, each.document.number, each.document.corrects) for each in (one, two)] == [
        ("partial_credit_note", "MG-000002", "MG-000001"),
        ("partial_credit_note", "MG-000003", "MG-000001"),
    ]
    (credit,) = one.document.lines
    assert credit.payable is not None
    assert (credit.kind, credit.model, credit.credits, credit.payable.amount) == ("credit", "gpt-4.1", line, "-8")
    assert (one.document.totals.payable.amount, two.document.totals.payable.amount) == ("-8", "-1.5")
    assert await balance(both) - before == 95 * NANO // 10, "the team owes so much less"
    async with both.engine.connect() as connection:
        again = await get_statement(connection, both.team.id, first.id)
        assert (again.credited_nano, again.credited_by, again.document) == (95 * NANO // 10, None, first.document)
        assert await broken_links(connection) == []
    assert (await both.draft("2026-10")).document.lines == [], "what was used stays stated"
    for statement in ("UPDATE statements SET credit_nano = 1", "DELETE FROM statements"):
        async with both.engine.connect() as connection:
            with pytest.raises(DBAPIError, match="never changes"):
                await connection.execute(text(statement))


async def test_every_form_of_a_part_says_the_same_and_keeps_focus_s_rules(world: World) -> None:
    first = await stated(world)
    for note in (await part(world, first, 1, 3), await part(world, first, amount="0.42"), await whole(world, first)):
        payable = note.document.totals.payable.amount
        rows = list(csv.DictReader(io.StringIO(statement_csv(note.document))))
        assert sum(Fraction(row["payable"]) for row in rows) == Fraction(payable)
        assert [row["credits_line"] for row in rows if row["kind"] == "credit"] == [
            "" if line.credits is None else str(line.credits) for line in note.document.lines if line.kind == "credit"
        ]
        async with world.engine.connect() as connection:
            focus = await statement_focus(connection, note)
        assert focus_faults(focus, payable) == []
        assert {row["ChargeClass"] for row in focus} == {"Correction"}
        credits = [row for row in focus if row["ChargeCategory"] == "Credit"]
        assert len(credits) == len([line for line in note.document.lines if line.kind == "credit"]) > 0


async def test_no_more_than_is_left_of_a_statement_or_a_line_is_ever_credited(world: World) -> None:
    first = await stated(world)
    line = position(first, "deepseek-chat")
    await part(world, first, line)
    with pytest.raises(Conflict, match="nothing payable is left of the line"):
        await part(world, first, line)
    with pytest.raises(Conflict, match=r"25.51 CNY is more than the 25.5 CNY that are left of MG-000001"):
        await part(world, first, amount="25.51")
    await part(world, first, amount="25.5")
    with pytest.raises(Conflict, match="left"):
        await part(world, first, amount="0.01")
    with pytest.raises(Conflict, match="left"):
        await part(world, first, position(first, "gpt-4.1"))


@pytest.mark.parametrize(
    ("lines", "amount", "error", "field"),
    [
        ((), None, InvalidQuery, "lines"),
        ((1,), "1", InvalidQuery, "lines"),
        ((9,), None, InvalidQuery, "lines"),
        ((), "0", InvalidAmount, "amount"),
        ((), "-1", InvalidAmount, "amount"),
        ((), "0.001", InvalidAmount, "amount"),
        ((), "1e30", InvalidAmount, "amount"),
        ((), "10000000000000000000000000000000", InvalidAmount, "amount"),
        ((), "9000000000", Conflict, "amount"),
    ],
)
async def test_what_cannot_be_credited_names_its_field(
    sqlite_database: AsyncEngine, lines: tuple[int, ...], amount: str | None, error: type[BillingError], field: str
) -> None:
    world = await make_world(sqlite_database)
    first = await stated(world)
    with pytest.raises(error) as refusal:
        await part(world, first, *lines, amount=amount)
    assert refusal.value.field == field
    assert await world.sum("SELECT count(*) FROM statements") == 1


async def test_a_whole_note_after_parts_takes_them_back_and_the_month_can_be_stated_again(both: World) -> None:
    first = await stated(both)
    before = await balance(both)
    notes = [await part(both, first, 1), await part(both, first, amount="0.01"), await whole(both, first)]
    assert sum(nano_of(each.document.totals.payable) for each in (first, *notes)) == 0
    assert await balance(both) == before
    with pytest.raises(Conflict, match="credited already"):
        await part(both, first, amount="0.01")
    again = await both.issue("2026-09")
    assert again.document.totals == first.document.totals
    assert await both.sum("SELECT sum(settled_nano) FROM statement_cells") == await both.sum(
        "SELECT sum(settled_nano) FROM usage"
    )


async def test_all_lines_of_a_statement_that_rounds_down_credit_no_more_than_it_says(world: World) -> None:
    """Lines of 0.00825, 0.015 and 0.00… round to more (or less) than their sum does; what they lack is a line of the note."""
    first = await stated(world, 1_000)
    lines = [line for line in first.document.lines if line.kind == "usage" and nano_of(line.payable) > 0]
    note = await part(world, first, *[line.position for line in lines])
    assert 0 <= nano_of(first.document.totals.payable) + nano_of(note.document.totals.payable) <= CENT


async def test_a_note_and_an_issue_and_another_note_at_once_never_credit_too_much(both: World) -> None:
    first = await stated(both)
    await both.use("gpt-4.1", Usage(output=MILLION), "2026-10-10T12:00:00Z")
    asked = [part(both, first, amount="10") for _ in range(4)]
    done = await asyncio.gather(*asked, both.issue("2026-10"), return_exceptions=True)
    refused = [each for each in done if isinstance(each, BaseException)]
    assert [type(each) for each in refused] == [Conflict, Conflict]
    async with both.engine.connect() as connection:
        assert (await get_statement(connection, both.team.id, first.id)).credited_nano == 20 * NANO
        assert await broken_links(connection) == []
        numbers = [row.number for row in await list_statements(connection, both.team.id, limit=10)]
    assert sorted(number for number in numbers if number) == [1, 2, 3, 4]
    await balance(both)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    outputs=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=4),
    asks=st.lists(
        st.one_of(st.integers(1, 5), st.integers(1, 5_000).map(lambda cents: Money("CNY", cents * CENT))), max_size=5
    ),
)
async def test_any_notes_leave_a_remainder_that_is_not_negative_and_books_that_agree(
    sqlite_database: AsyncEngine, outputs: list[int], asks: list[int | Money]
) -> None:
    world = await fresh(sqlite_database)
    for model, output in zip(ROUTES, outputs, strict=False):
        await world.use(model, Usage(output=output), DAY)
    first = await world.issue("2026-09")
    left, before = nano_of(first.document.totals.payable), await balance(world)
    for ask in asks:
        try:
            note = (
                await part(world, first, ask) if isinstance(ask, int) else await part(world, first, amount=ask.amount)
            )
        except (Conflict, InvalidQuery):
            continue
        left += nano_of(note.document.totals.payable)
        before -= nano_of(note.document.totals.payable)
        assert left >= 0
        assert await balance(world) == before
    final = await whole(world, first)
    assert nano_of(final.document.totals.payable) == -left


async def fresh(engine: AsyncEngine) -> World:
    """Each example is a team of its own in one database."""
    async with engine.begin() as connection:
        count = int(await connection.scalar(text("SELECT count(*) FROM teams")) or 0)
    if not count:
        return await make_world(engine)
    async with engine.begin() as connection:
        team = await create_team(connection, name=f"team {count}", settlement_currency="CNY", timezone="Asia/Shanghai")
    async with engine.begin() as connection:
        await settle_one_to_one(connection, team)
    return World(engine, team)
