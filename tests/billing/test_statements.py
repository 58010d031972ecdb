"""Statements: what a month holds, stated once, never changed; what comes late stands on the next."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.credit_notes import credit_statement
from billing.database import open_database
from billing.errors import AmountOverflow, Conflict, InvalidQuery, NotFound
from billing.ledger import record
from billing.money import NANO, Money, parse_scaled
from billing.statement_csv import statement_csv
from billing.statements import (
    broken_links,
    discard_draft,
    draft_statement,
    get_statement,
    issue_statement,
    list_statements,
    month_bounds,
    month_of,
)
from billing.tables import rollup_money
from billing.teams import create_team, update_team
from billing.times import DAY_US, QUARTER_US, now_us
from billing.usage import Usage
from billing.wallet_credits import adjust, top_up
from billing.watermarks import raise_watermark
from tests.billing.helpers import at
from tests.billing.world import ROUTES, World, make_world, request, settle_one_to_one

MILLION = 1_000_000


@pytest.fixture
async def world(sqlite_url: str) -> AsyncIterator[World]:
    engine = open_database(sqlite_url)
    yield await make_world(engine)
    await engine.dispose()


@pytest.fixture
async def both(database: AsyncEngine) -> World:
    """The same world on SQLite and on PostgreSQL."""
    return await make_world(database)


async def test_the_founding_table_stands_on_a_statement(both: World) -> None:
    for model in ROUTES:
        await both.use(model, Usage(output=MILLION), "2026-09-10T12:00:00Z")
    statement = (await both.issue("2026-09")).document
    table = {
        line.model: [
            f"{money.amount} {money.currency}"
            for money in (line.unit_price, line.list, line.policy, line.settled)
            if money
        ]
        for line in statement.lines
    }
    assert table == {
        "gpt-4.1": ["8 USD", "8 USD", "58.4 CNY", "8 CNY"],
        "claude-sonnet-4-5": ["15 USD", "15 USD", "109.5 CNY", "15 CNY"],
        "gemini-2.5-flash": ["2.5 USD", "2.5 USD", "18.25 CNY", "2.5 CNY"],
        "deepseek-chat": ["0.42 USD", "0.42 USD", "3.066 CNY", "0.42 CNY"],
    }
    assert {line.saving_percent for line in statement.lines} == {"86.3014"}
    assert statement.totals.saving_percent == "86.3014"
    assert statement.totals.payable.amount == "25.92"
    assert statement.number == "MG-000001"


async def test_ten_million_output_tokens_a_day_for_thirty_days_save_cny_793_80(world: World) -> None:
    books = await world.books()
    start_us, end_us = month_bounds("2026-09", "Asia/Shanghai")
    assert end_us - start_us == 30 * DAY_US
    days = [
        request(books, world.team, "deepseek-chat", Usage(output=10 * MILLION), start_us + day * DAY_US)
        for day in range(30)
    ]
    async with world.engine.begin() as connection:
        await record(connection, days)
    totals = (await world.issue("2026-09")).document.totals
    assert (totals.list[0].amount, totals.policy.amount, totals.settled.amount) == ("126", "919.8", "126")
    assert (totals.saving.amount, totals.saving.currency, totals.saving_percent) == ("793.8", "CNY", "86.3014")


async def test_a_month_begins_at_midnight_of_the_team_s_time_zone(world: World) -> None:
    await world.use("deepseek-chat", Usage(output=1), "2026-08-31T15:59:59Z")
    await world.use("deepseek-chat", Usage(output=2), "2026-08-31T16:00:00Z")
    await world.use("deepseek-chat", Usage(output=4), "2026-09-30T15:59:59Z")
    await world.use("deepseek-chat", Usage(output=8), "2026-09-30T16:00:00Z")
    draft = await world.draft("2026-09")
    assert (draft.document.start, draft.document.end) == ("2026-08-31T16:00:00Z", "2026-09-30T16:00:00Z")
    assert [line.quantity for line in draft.document.lines] == [6]


async def test_lines_round_to_the_minor_unit_and_the_remainder_is_a_line_of_its_own(world: World) -> None:
    for model in ("gpt-4.1", "claude-sonnet-4-5", "gemini-2.5-flash"):
        await world.use(model, Usage(output=550), "2026-09-10T12:00:00Z")
    await world.use("claude-sonnet-4-5", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    document = (await world.draft("2026-09")).document
    shown = [
        (line.kind, line.settled and line.settled.amount, line.payable and line.payable.amount)
        for line in document.lines
    ]
    assert (
        shown
        == [
            ("usage", "15.00825", "15.01"),
            ("usage", "0.001375", "0"),
            ("usage", "0.0044", "0"),
            ("rounding", None, "0"),
        ][: len(shown)]
    )
    assert document.totals.settled.amount == "15.014025"
    assert document.totals.payable.amount == "15.01"
    lines = sum(Money.parse(line.payable.amount, "CNY").nano for line in document.lines if line.payable)
    assert lines == Money.parse(document.totals.payable.amount, "CNY").nano


async def test_a_rounding_line_makes_up_what_rounded_lines_lack(world: World) -> None:
    for model in ("gpt-4.1", "claude-sonnet-4-5", "gemini-2.5-flash"):
        await world.use(model, Usage(output=550), "2026-09-10T12:00:00Z")
    document = (await world.draft("2026-09")).document
    # 0.00825 + 0.001375 + 0.0044 = 0.014025: the lines round to 0.01, 0 and 0, the total to 0.01
    assert document.totals.rounding.amount == "0"
    await world.use("deepseek-chat", Usage(output=9_000), "2026-09-10T12:00:00Z")
    document = (await world.draft("2026-09")).document
    # and 0.00378, which rounds to 0, makes 0.017805: payable 0.02
    assert document.totals.payable.amount == "0.02"
    assert document.lines[-1].kind == "rounding"
    assert document.lines[-1].payable is not None
    assert document.lines[-1].payable.amount == "0.01"


async def test_totals_to_compare_with_say_how_many_lines_they_lack(world: World) -> None:
    """A line without a rate is in no such total: the total says that it is partial, in every form."""
    async with world.engine.begin() as connection:
        team = await create_team(connection, name="zurich", settlement_currency="CHF")
        await settle_one_to_one(connection, team)
    for model in ("gpt-4.1", "deepseek-chat"):
        await world.use(model, Usage(output=MILLION), "2026-09-10T12:00:00Z", team=team)
    document = (await world.issue("2026-09", team)).document
    assert (document.totals.without_policy, document.totals.without_reference) == (2, 2)
    assert [row["without"] for row in csv.DictReader(io.StringIO(statement_csv(document)))] == ["policy reference"] * 2
    await world.use("gpt-4.1", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    totals = (await world.draft("2026-09")).document.totals
    assert (totals.without_policy, totals.without_reference) == (0, 1), "the policy rate is there, the market's is not"


async def test_rule_07_a_currency_without_decimals_is_payable_in_whole_units(world: World) -> None:
    async with world.engine.begin() as connection:
        team = await create_team(connection, name="tokyo", settlement_currency="JPY")
        await settle_one_to_one(connection, team)
    await world.use("gpt-4.1", Usage(output=450_000), "2026-09-10T12:00:00Z", team=team)
    totals = (await world.issue("2026-09", team)).document.totals
    assert (totals.settled.amount, totals.payable.amount) == ("3.6", "4")


async def test_what_arrives_after_the_issue_is_a_prior_period_line_on_the_next(both: World) -> None:
    await both.use("deepseek-chat", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    first = await both.issue("2026-09")
    await both.use("deepseek-chat", Usage(output=2 * MILLION), "2026-09-11T12:00:00Z")
    await both.use("gpt-4.1", Usage(output=MILLION), "2026-10-11T12:00:00Z")
    second = await both.issue("2026-10")
    assert [(line.kind, line.month, line.model, line.quantity) for line in second.document.lines] == [
        ("usage", "2026-10", "gpt-4.1", MILLION),
        ("prior_period", "2026-09", "deepseek-chat", 2 * MILLION),
    ]
    assert second.document.totals.settled.amount == "8.84"
    async with both.engine.connect() as connection:
        assert await get_statement(connection, both.team.id, first.id) == first
    assert await both.sum("SELECT sum(settled_nano) FROM usage") == parse_scaled("9.26", NANO, "sum")
    third = await both.draft("2026-11")
    assert third.document.lines == []


async def test_a_credit_note_takes_a_statement_back_whole_and_the_month_may_be_stated_again(both: World) -> None:
    await both.use("deepseek-chat", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    first = await both.issue("2026-09")
    async with both.engine.begin() as connection:
        note = await credit_statement(connection, both.team.id, first.id, reason="wrong address", actor="ann")
        assert (note.kind, note.document.number, note.document.corrects) == ("credit_note", "MG-000002", "MG-000001")
        assert [(line.quantity, line.payable and line.payable.amount) for line in note.document.lines] == [
            (-MILLION, "-0.42")
        ]
        assert note.document.totals.payable.amount == "-0.42"
        with pytest.raises(Conflict, match="credited already"):
            await credit_statement(connection, both.team.id, first.id, reason="again", actor="ann")
    await both.use("deepseek-chat", Usage(output=MILLION), "2026-09-12T12:00:00Z")
    again = await both.issue("2026-09")
    assert (again.document.number, again.document.totals.payable.amount) == ("MG-000003", "0.84")
    stated = "SELECT sum(settled_nano) FROM statement_cells"
    assert await both.sum(stated) == await both.sum("SELECT sum(settled_nano) FROM usage_lines")


async def test_an_issued_statement_refuses_to_be_changed_even_in_the_database(both: World) -> None:
    await both.use("deepseek-chat", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    await both.issue("2026-09")
    for statement in (
        "UPDATE statements SET document = '{}'",
        "DELETE FROM statements",
        "UPDATE statement_cells SET quantity = 0",
        "DELETE FROM statement_cells",
    ):
        async with both.engine.connect() as connection:
            with pytest.raises(DBAPIError, match="never changes"):
                await connection.execute(text(statement))


async def test_numbers_have_no_gap_and_hashes_chain_over_all_teams(world: World) -> None:
    async with world.engine.begin() as connection:
        other = await create_team(connection, name="ads", settlement_currency="CNY")
    one, two, three = await world.issue("2026-08"), await world.issue("2026-08", other), await world.issue("2026-09")
    assert [row.number for row in (one, two, three)] == [1, 2, 3]
    assert len({row.hash for row in (one, two, three)}) == 3
    async with world.engine.begin() as connection:
        assert await broken_links(connection) == []
        dropped = (
            "DROP TRIGGER statements_no_update"
            if connection.dialect.name == "sqlite"
            else "DROP TRIGGER issued ON statements"
        )
        await connection.execute(text(dropped))
        await connection.execute(
            text("UPDATE statements SET document = replace(document, 'ads', 'add') WHERE number = 2")
        )
        assert await broken_links(connection) == ["MG-000002"]


async def test_a_running_month_can_be_drafted_and_not_issued(world: World) -> None:
    month = month_of(now_us(), "Asia/Shanghai")
    draft = await world.draft(month)
    assert (await world.draft(month)).id == draft.id, "made again, not twice"
    async with world.engine.begin() as connection:
        with pytest.raises(Conflict, match="can be issued from"):
            await issue_statement(connection, world.team.id, draft.id)
        with pytest.raises(InvalidQuery, match="has not begun"):
            await draft_statement(connection, world.team.id, "2099-01")
        await discard_draft(connection, world.team.id, draft.id)
        with pytest.raises(NotFound):
            await get_statement(connection, world.team.id, draft.id)


async def test_a_statement_waits_until_every_journal_is_past_the_month(both: World) -> None:
    _, end_us = month_bounds("2026-09", "Asia/Shanghai")
    async with both.engine.begin() as connection:
        await raise_watermark(connection, "late", end_us - 1)
        await raise_watermark(connection, "there", end_us)
        await raise_watermark(connection, "done", 0, complete=True)
    draft = await both.draft("2026-09")
    async with both.engine.begin() as connection:
        with pytest.raises(Conflict, match="1 journal.*late") as refusal:
            await issue_statement(connection, both.team.id, draft.id)
        assert refusal.value.field == "without_journals"
        with pytest.raises(InvalidQuery, match="'there' is not behind|there is not behind"):
            await issue_statement(connection, both.team.id, draft.id, without_journals=["late", "there"])
        issued = await issue_statement(connection, both.team.id, draft.id, without_journals=["late"])
    assert issued.document.without_journals == ["late"]


async def test_months_are_issued_in_order_so_that_nothing_stays_unstated(world: World) -> None:
    await world.use("deepseek-chat", Usage(output=1), "2026-07-10T12:00:00Z")
    draft = await world.draft("2026-09")
    async with world.engine.begin() as connection:
        with pytest.raises(Conflict, match="issue 2026-07 first"):
            await issue_statement(connection, world.team.id, draft.id)
    await world.issue("2026-07")
    await world.issue("2026-09")
    async with world.engine.begin() as connection:
        with pytest.raises(Conflict, match="issued as MG-000002"):
            await draft_statement(connection, world.team.id, "2026-09")
        with pytest.raises(Conflict, match="months of Asia/Shanghai"):
            await update_team(connection, world.team.id, timezone="UTC")
        listed = await list_statements(connection, world.team.id, limit=10)
    assert [row.month for row in listed] == ["2026-09", "2026-07"]


async def test_usage_without_a_price_is_shown_and_never_counted_as_zero(world: World) -> None:
    await world.use("mystery", Usage(output=7), "2026-09-10T12:00:00Z")
    document = (await world.draft("2026-09")).document
    (line,) = document.lines
    assert (line.quantity, line.settled, line.payable, line.unpriced) == (7, None, None, True)
    assert document.totals.unpriced_quantity == 7


async def test_the_wallet_over_the_month_stands_beside_the_lines(both: World) -> None:
    await both.use("deepseek-chat", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    async with both.engine.begin() as connection:
        common: dict[str, Any] = {"team_id": both.team.id, "actor": "test"}
        await top_up(connection, **common, external_id="p1", amount="100", currency="CNY", method="bank")
        await adjust(connection, **common, amount="-1", reason="fee")
    first = (await both.issue("2026-09")).document.balances
    assert [
        view and view.amount for view in (first.opening, first.top_ups, first.usage, first.other, first.closing)
    ] == [
        "0",
        "0",
        "-0.42",
        "0",
        "-0.42",
    ]
    month = month_of(now_us(), "Asia/Shanghai")
    now = (await both.draft(month)).document.balances
    assert [view and view.amount for view in (now.opening, now.top_ups, now.usage, now.other, now.closing)] == [
        "-0.42",
        "100",
        "0",
        "-1",
        "98.58",
    ]


async def test_a_month_s_sum_beyond_64_bits_is_an_error_and_never_a_wrap(both: World) -> None:
    cell: dict[str, object] = dict.fromkeys(("model", "provider", "provider_model", "rate_ids", "list_currency"), "")
    cell |= {"team_id": both.team.id, "token_class": "output", "settlement_currency": "CNY"}
    cell |= {"price_row_id": 0, "terms_id": 0, "sell_id": 0, "lines": 1, "quantity": 1, "settled_nano": 2**62}
    async with both.engine.begin() as connection:
        rows = [cell | {"bucket_us": at("2026-09-10T12:00:00Z") + QUARTER_US * each} for each in range(2)]
        await connection.execute(insert(rollup_money), rows)
    with pytest.raises(AmountOverflow, match="64 bits"):
        await both.draft("2026-09")


@pytest.mark.parametrize("month", ["2026-13", "2026-1", "1999-12", "november", "2026-11-01", ""])
def test_a_month_is_a_month(month: str) -> None:
    with pytest.raises(InvalidQuery) as refusal:
        month_bounds(month, "UTC")
    assert refusal.value.field == "month"


_REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(sorted(ROUTES)),
        st.integers(0, 10**7),
        st.integers(0, 10**7),
        st.integers(at("2026-07-31T16:00:00Z") // MILLION, at("2026-10-31T15:59:59Z") // MILLION),
    ),
    max_size=12,
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(early=_REQUESTS, late=_REQUESTS)
async def test_rule_10_rows_equal_rollups_equal_statements_to_the_last_nano(
    database_url: str, early: list[tuple[str, int, int, int]], late: list[tuple[str, int, int, int]]
) -> None:
    """Whatever arrives before and after the issue: all that three issued months state is what the rows hold."""
    engine = open_database(database_url)
    try:
        async with engine.begin() as connection:
            for table in ("usage", "usage_lines", "attempts", "rollup_money", "rollup_traffic"):
                await connection.execute(text(f"DELETE FROM {table}"))
        world = await make_world_again(engine)
        books = await world.books()
        for batch, months in ((early, ["2026-08", "2026-09"]), (late, ["2026-10"])):
            made = [
                request(books, world.team, model, Usage(input=read, output=written), second * MILLION)
                for model, read, written, second in batch
            ]
            async with engine.begin() as connection:
                await record(connection, made)
            for month in months:
                await world.issue(month)
        for name in ("quantity", "list_nano", "settled_nano", "policy_nano"):
            stated = (
                f"SELECT sum({name}) FROM statement_cells JOIN statements ON id = statement_id "
                f"WHERE team_id = '{world.team.id}'"
            )
            held = f"SELECT sum({name}) FROM rollup_money WHERE team_id = '{world.team.id}'"
            assert await world.sum(stated) == await world.sum(f"SELECT sum({name}) FROM usage_lines")
            assert await world.sum(stated) == await world.sum(held)
        async with engine.connect() as connection:
            documents = [row.document for row in await list_statements(connection, world.team.id, limit=10)]
            assert await broken_links(connection) == []
        total = sum(Money.parse(document.totals.settled.amount, "CNY").nano for document in documents)
        assert total == await world.sum("SELECT sum(settled_nano) FROM usage_lines")
        assert total == -await world.sum(f"SELECT sum(balance_nano) FROM wallets WHERE team_id = '{world.team.id}'")
    finally:
        await engine.dispose()


async def make_world_again(engine: AsyncEngine) -> World:
    async with engine.begin() as connection:
        count = await connection.scalar(text("SELECT count(*) FROM teams"))
        if count:
            team = await create_team(
                connection, name=f"team {count}", settlement_currency="CNY", timezone="Asia/Shanghai"
            )
            await settle_one_to_one(connection, team)
            return World(engine, team)
    return await make_world(engine)
