"""Reconciliation: what is derived is compared with its rows, and made again out of them; the rows themselves never change."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.corrections import reverse
from billing.drift import find_drift, repair_balance, repair_rollups
from billing.errors import NotFound
from billing.ledger import record
from billing.times import HOUR_US, QUARTER_US, quarter_of
from billing.usage import Usage
from tests.billing.helpers import NOON_US, rated_record, request_id

DERIVED = ("rollup_traffic", "rollup_money", "wallets")


async def digest(connection: AsyncConnection) -> list[list[str]]:
    return [sorted(map(str, await connection.execute(text(f"SELECT * FROM {table}")))) for table in DERIVED]


async def fill(connection: AsyncConnection) -> None:
    rows = [
        rated_record(
            Usage(input=90 + at, cache_read=5, output=10, reasoning=3), key=f"key_{at % 2}", estimated=at == 2,
            id_=request_id(NOON_US + at * QUARTER_US // 3), status="failed" if at == 4 else "completed",
        )
        for at in range(7)
    ]  # fmt: skip
    await record(connection, rows)
    await reverse(connection, rows[0].id, request_id(NOON_US + HOUR_US), reason="a test", actor="tests")


async def found(connection: AsyncConnection) -> list[str]:
    return [str(each) for each in await find_drift(connection, NOON_US, NOON_US + 2 * HOUR_US)]


async def test_books_as_the_ledger_wrote_them_have_no_drift(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await fill(connection)
        assert await found(connection) == []


@pytest.mark.parametrize(
    ("harm", "where"),
    [
        ("UPDATE rollup_traffic SET requests = requests + 1", "rollup_traffic"),
        ("UPDATE rollup_traffic SET settled_nano = settled_nano - 1", "rollup_traffic"),
        ("UPDATE rollup_traffic SET output = output + 5", "rollup_traffic"),
        ("UPDATE rollup_money SET settled_nano = settled_nano + 1 WHERE token_class = 'output'", "rollup_money"),
        ("DELETE FROM rollup_money", "rollup_money"),
        ("DELETE FROM rollup_traffic WHERE key_id = 'key_1'", "rollup_traffic"),
    ],
)
async def test_a_rollup_that_drifted_is_found_and_made_again(database: AsyncEngine, harm: str, where: str) -> None:
    async with database.begin() as connection:
        await fill(connection)
        before = await digest(connection)
        await connection.execute(text(harm))
        drift = await find_drift(connection, NOON_US, NOON_US + 2 * HOUR_US)
        assert {each.what for each in drift} == {where}
        for bucket_us in sorted({each.bucket_us for each in drift if each.bucket_us is not None}):
            await repair_rollups(connection, bucket_us)
        assert await found(connection) == []
        assert await digest(connection) == before


async def test_a_running_balance_is_the_sum_of_its_entries_again(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await fill(connection)
        before = await digest(connection)
        await connection.execute(text("UPDATE wallets SET balance_nano = balance_nano + 7"))
        (drift,) = await find_drift(connection, NOON_US, NOON_US + 2 * HOUR_US)
        assert (drift.what, drift.where) == ("wallets", "team_a CNY")
        await repair_balance(connection, "team_a", "CNY")
        assert await digest(connection) == before


async def test_rows_that_retention_deleted_leave_their_rollups_alone(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        with pytest.raises(NotFound, match="no rows stand at"):
            await repair_rollups(connection, quarter_of(NOON_US))


async def test_quarters_before_the_oldest_row_are_not_looked_at(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await fill(connection)
        await record(connection, [rated_record(Usage(input=1), id_=request_id(NOON_US - HOUR_US))])
        await connection.execute(text("DELETE FROM usage_lines WHERE quantity = 1"))
        await connection.execute(text("DELETE FROM usage WHERE total_input = 1"))
        drift = await find_drift(connection, NOON_US - 2 * HOUR_US, NOON_US + 2 * HOUR_US)
        assert drift == []
