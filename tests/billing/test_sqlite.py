"""SQLite's connections: one visit to their thread a statement, and nothing held of one that was given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database, reading
from billing.sqlite import Connection

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT count(*) FROM n"


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


async def test_rows_counts_and_ids_are_those_of_the_driver(database: AsyncEngine) -> None:
    async with database.begin() as connection:
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
    assert threading.active_count() == before
