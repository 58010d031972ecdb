"""A migrated database with one price list, and what the tests ask it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.books import Pins, load_books
from billing.database import open_database
from billing.publishing import PriceDraft, publish_prices
from billing.tables import attempts, corrections, rollup_money, rollup_traffic, usage, usage_lines
from gateway.database import upgrade

_START_US = 1_000_000_000_000_000
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class BooksDatabase:
    """One database by URL. Every question opens and closes its own connection, as a process of its own would."""

    url: str

    def run(self, work: Callable[[AsyncConnection], Awaitable[_Result]]) -> _Result:
        async def once() -> _Result:
            engine = open_database(self.url)
            try:
                async with engine.begin() as connection:
                    return await work(connection)
            finally:
                await engine.dispose()

        return asyncio.run(once())

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        async def query(connection: AsyncConnection) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in await connection.execute(text(sql))]

        return self.run(query)

    def execute(self, *statements: str) -> None:
        async def work(connection: AsyncConnection) -> None:
            for statement in statements:
                await connection.exec_driver_sql(statement)

        self.run(work)

    def count(self, table: str, where: str = "1 = 1") -> int:
        return int(self.rows(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])

    def migrate(self) -> None:
        asyncio.run(upgrade(self.url))

    def publish(self, provider: str = "deepseek", model: str = "deepseek-chat", output: str = "0.42") -> Pins:
        """Input USD 0.28 and `output` per million tokens; the pins that see them."""

        async def work(connection: AsyncConnection) -> Pins:
            await publish_prices(
                connection,
                [
                    PriceDraft(provider, model, "input", "USD", "0.28", _START_US),
                    PriceDraft(provider, model, "output", "USD", output, _START_US),
                ],
            )
            return (await load_books(connection)).pins()

        return self.run(work)

    def digest(self) -> list[list[tuple[Any, ...]]]:
        """Every figure of the books except when it was written; equal digests mean that nothing changed."""
        digest = []
        for table in (usage, usage_lines, attempts, rollup_money, rollup_traffic, corrections):
            kept = ", ".join(f'"{column.name}"' for column in table.columns if column.name != "recorded_at_us")
            digest.append(sorted(map(tuple, self.rows(f"SELECT {kept} FROM {table.name}")), key=repr))
        return digest
