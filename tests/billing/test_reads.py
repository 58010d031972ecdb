"""A usage row comes back with everything its cost was computed from; lists page by id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import Books, load_books
from billing.database import open_database, reading
from billing.errors import InvalidQuery
from billing.ledger import list_usage, record, usage_row
from billing.reads import UsageFilters
from billing.recording import record_terms
from billing.seed import seed
from billing.teams import create_team
from billing.times import HOUR_US
from billing.usage import Usage
from tests.billing.helpers import NOON_US, at, rated_record, request_id


async def _world(database: AsyncEngine) -> tuple[str, Books]:
    """The shipped book, and a team that pays CNY 1 for each USD 1."""
    async with database.begin() as connection:
        await seed(connection)
        team = await create_team(connection, name="search", settlement_currency="CNY")
        await record_terms(
            connection,
            team_id=team.id,
            base="USD",
            quote="CNY",
            policy="fixed",
            rate="1",
            effective_from_us=at("2026-01-01T00:00:00Z"),
        )
        books = await load_books(connection)
    terms = replace(books.terms.rows[0], team_id="team_a")  # the helper rates for team_a
    return team.id, Books(books.prices, books.rates, type(books.terms)([terms]))


async def test_the_founding_case_stands_in_the_books_with_its_price_rates_and_terms_named(
    database: AsyncEngine,
) -> None:
    team, world = await _world(database)
    one = rated_record(Usage(output=1_000_000), team=team, world=world, tags={"project": "search"})
    async with database.begin() as connection:
        await record(connection, [one])
    async with reading(database) as connection:
        view = await usage_row(connection, one.id)
    assert view is not None
    seen = msgspec.to_builtins(view)
    assert seen["list"] == {"amount": "0.42", "currency": "USD"}
    assert seen["policy"] == {"amount": "3.066", "currency": "CNY"}
    assert seen["settled"] == {"amount": "0.42", "currency": "CNY"}
    assert seen["cost"] == {"amount": "0.42", "currency": "USD"}
    assert seen["reference"] is None
    assert seen["saving_percent"] == "86.3014"
    assert seen["tokens"] == {"output": 1_000_000, "total_input": 0, "total": 1_000_000, "reasoning": 0}
    (price,), (rate,), terms = seen["price_rows"], seen["rates"], seen["terms"]
    assert (price["provider"], price["model"], price["token_class"]) == ("deepseek", "deepseek-chat", "output")
    assert (price["amount"], price["currency"], price["unit"]) == ("0.42", "USD", "mtok")
    assert price["source"].startswith("https://api-docs.deepseek.com/")
    assert (rate["kind"], rate["base"], rate["quote"], rate["rate"]) == ("policy", "USD", "CNY", "7.3")
    assert (terms["team_id"], terms["policy"], terms["rate"]) == (team, "fixed", "1")
    assert seen["lines"][0]["settled"] == {"amount": "0.42", "currency": "CNY"}
    assert seen["attempts"][0]["tokens"] == {"output": 1_000_000}
    assert seen["attempts"][0]["cost"] == {"amount": "0.42", "currency": "USD"}
    assert (seen["latency_ms"], seen["ttft_ms"], seen["tags"]) == (800, 120, {"project": "search"})
    assert (seen["id"], seen["status"], seen["estimated"], seen["streamed"]) == (str(one.id), "completed", False, True)


async def test_an_unknown_request_has_no_row(database: AsyncEngine) -> None:
    async with reading(database) as connection:
        assert await usage_row(connection, UUID(int=1)) is None


async def test_rule_33_a_list_pages_by_id_newest_first_and_each_row_comes_once(database: AsyncEngine) -> None:
    team, world = await _world(database)
    requests = [
        rated_record(
            Usage(input=1, output=n),
            id_=request_id(NOON_US + n * 1000),
            team=team,
            key="key_a" if n % 2 else "key_b",
            status="failed" if n % 5 == 0 else "completed",
            world=world,
        )
        for n in range(23)
    ]
    async with database.begin() as connection:
        await record(connection, requests)

    async def everything(filters: UsageFilters) -> list[str]:
        found, cursor = [], None
        async with reading(database) as connection:
            while True:
                page = await list_usage(connection, filters, cursor, limit=5)
                found += [view.id for view in page.data]
                if page.next_cursor is None:
                    return found
                assert len(page.data) == 5
                cursor = page.next_cursor

    ids = [str(each.id) for each in requests][::-1]
    assert await everything(UsageFilters()) == ids
    assert await everything(UsageFilters(team_id=team)) == ids
    assert await everything(UsageFilters(team_id="team_other")) == []
    assert await everything(UsageFilters(key_id="key_b")) == ids[::2]
    assert len(await everything(UsageFilters(status="failed"))) == 5
    assert await everything(UsageFilters(unpriced=True)) == []
    span = UsageFilters(start_us=NOON_US + 3000, end_us=NOON_US + 6000)
    assert await everything(span) == [str(each.id) for each in requests[3:6]][::-1]


async def test_rule_33_a_list_of_what_failed_reads_the_few_that_did_whatever_the_range(database: AsyncEngine) -> None:
    team, world = await _world(database)
    statuses = ["completed"] * 400 + ["failed", "cancelled"]
    rows = [
        rated_record(Usage(output=1), id_=request_id(NOON_US + n * 1000), team=team, status=status, world=world)
        for n, status in enumerate(statuses)
    ]
    async with database.begin() as connection:
        await record(connection, rows)
        await connection.execute(text("ANALYZE"))
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "FROM usage " in statement.replace("\n", " "):
            asked.append((statement, parameters))

    event.listen(database.sync_engine, "before_cursor_execute", note)
    async with reading(database) as connection:
        filters = UsageFilters(status="failed", start_us=NOON_US - HOUR_US, end_us=NOON_US + HOUR_US)
        assert len((await list_usage(connection, filters)).data) == 1
    event.remove(database.sync_engine, "before_cursor_execute", note)
    ((statement, parameters),) = asked
    async with reading(database) as connection:
        if (
            database.dialect.name == "postgresql"
        ):  # planned once for every value of the parameters, as for a busy connection
            await connection.execute(text("SET plan_cache_mode = force_generic_plan"))
            explain = "EXPLAIN"
        else:
            explain = "EXPLAIN QUERY PLAN"
        plan = "\n".join(str(row) for row in await connection.exec_driver_sql(f"{explain} {statement}", parameters))
    assert "not_completed" in plan or "status_id_idx" in plan, plan
    assert "Seq Scan" not in plan and "pkey" not in plan and "SCAN" not in plan, plan


@pytest.mark.parametrize(
    ("cursor", "limit", "field"), [("' OR 1=1 --", 5, "cursor"), (None, 0, "limit"), (None, 501, "limit")]
)
async def test_rule_29_a_cursor_or_limit_that_cannot_be_is_refused(
    sqlite_url: str, cursor: str | None, limit: int, field: str
) -> None:
    engine = open_database(sqlite_url)
    async with reading(engine) as connection:
        with pytest.raises(InvalidQuery) as caught:
            await list_usage(connection, UsageFilters(), cursor, limit)
    assert caught.value.field == field
    await engine.dispose()
