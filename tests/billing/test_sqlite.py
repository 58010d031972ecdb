"""SQLite's connections: one visit to their thread a statement, and nothing held of one that was given up."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import is_overflow, open_database, reading
from billing.sqlite import Connection

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT count(*) FROM n"


@pytest.fixture(params=[False, True], ids=["thread", "inline"])
async def either(request: pytest.FixtureRequest, sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(sqlite_url, pool_size=1, busy_timeout_ms=50, inline=request.param)
    async with engine.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE sums (name TEXT PRIMARY KEY, nano INTEGER NOT NULL) STRICT")
    yield engine
    await engine.dispose()


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(sqlite_url)
    yield engine
    await engine.dispose()


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    visit = Connection._execute

    async def noted(self: Connection, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        seen.append(str(arguments[1]) if len(arguments) > 1 else function.__name__)
        return await visit(self, function, *arguments, **named)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(Connection, "_execute", noted)
    return seen


async def test_a_statement_is_one_visit_to_the_connections_thread(database: AsyncEngine, visits: list[str]) -> None:
    async with reading(database) as connection:
        visits.clear()
        assert (await connection.execute(text("SELECT 1 UNION SELECT 2"))).scalars().all() == [1, 2]
    assert visits == ["BEGIN DEFERRED", "SELECT 1 UNION SELECT 2", "rollback"]


async def test_rows_counts_and_ids_are_those_of_the_driver(either: AsyncEngine) -> None:
    async with either.begin() as connection:
        await connection.execute(text("CREATE TABLE pairs (id INTEGER PRIMARY KEY, word TEXT UNIQUE) STRICT"))
        one = await connection.execute(text("INSERT INTO pairs (word) VALUES ('one')"))
        assert (one.rowcount, one.lastrowid) == (1, 1)
        many = await connection.execute(
            text("INSERT INTO pairs (word) VALUES (:word)"), [{"word": str(each)} for each in range(40)]
        )
        assert many.rowcount == 40
        both = await connection.execute(text("UPDATE pairs SET word = word || '!' WHERE id < 3 RETURNING word"))
        assert sorted(both.scalars()) == ["0!", "one!"]
        with pytest.raises(IntegrityError):
            await connection.execute(text("INSERT INTO pairs (word) VALUES ('one!')"))
        assert await connection.scalar(text("SELECT count(*) FROM pairs")) == 41


async def test_a_statement_that_its_caller_gives_up_holds_nothing(database: AsyncEngine) -> None:
    before = threading.active_count()
    async with database.connect() as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await connection.execute(text(ENDLESS))
        await connection.invalidate()
    async with database.begin() as connection:
        await connection.execute(text("CREATE TABLE later (id INTEGER PRIMARY KEY) STRICT"))
    await database.dispose()
    async with asyncio.timeout(30):  # its thread counts to the end first
        while threading.active_count() > before:
            await asyncio.sleep(0.01)


async def test_a_transaction_is_kept_or_rolled_back_whole(either: AsyncEngine) -> None:
    async with either.begin() as connection:
        await connection.exec_driver_sql("INSERT INTO sums VALUES (?, ?)", [("a", 1), ("b", 2)])

    async def add_a_known_one() -> None:
        async with either.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO sums VALUES (?, ?)", ("c", 3))
            await connection.exec_driver_sql("INSERT INTO sums VALUES (?, ?)", ("a", 4))

    with pytest.raises(IntegrityError):
        await add_a_known_one()
    async with either.connect() as connection:
        rows = (await connection.execute(text("SELECT name, nano FROM sums ORDER BY name"))).all()
    assert [tuple(row) for row in rows] == [("a", 1), ("b", 2)]


async def test_errors_are_those_of_the_driver(either: AsyncEngine) -> None:
    with pytest.raises(DBAPIError) as caught:
        async with either.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO sums VALUES ('a', 9223372036854775807 + 1)")
    assert is_overflow(caught.value)
    holder = sqlite3.connect(either.url.database or "", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"):
        async with either.begin():
            pass
    holder.close()
    async with either.begin() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM sums")) == 0


async def test_inline_starts_no_thread_and_leaves_the_loop_its_turn(sqlite_url: str) -> None:
    before = threading.active_count()
    engine = open_database(sqlite_url, pool_size=1, inline=True)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    async with engine.begin() as connection:
        for _ in range(10):
            await connection.exec_driver_sql("SELECT 1")
    assert turns >= 10
    assert threading.active_count() == before
    other.cancel()
    await engine.dispose()


async def test_a_closed_connection_is_a_lost_one(sqlite_url: str) -> None:
    engine = open_database(sqlite_url, pool_size=1, inline=True)
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        driver.stop()
        with pytest.raises(OperationalError) as caught:
            await connection.exec_driver_sql("SELECT 1")
        assert caught.value.connection_invalidated
    async with engine.begin() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1
    await engine.dispose()
