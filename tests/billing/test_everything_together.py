"""Everything that moves money, in an order that nobody planned: the books agree to the last nano after each step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import load_books
from billing.bulk_rerating import RerateRange, apply_rerating, look, planned
from billing.credit_notes import credit_part, credit_statement
from billing.database import reading
from billing.drift import find_drift
from billing.errors import BillingError
from billing.ledger import record
from billing.money import Money
from billing.publishing import PriceDraft, publish_prices
from billing.statement_documents import nano_of
from billing.statements import broken_links, list_statements
from billing.times import DAY_US, HOUR_US
from billing.usage import Usage
from billing.wallet_credits import adjust, reverse_entry
from billing.wallets import check_wallet, list_entries
from tests.billing.helpers import at, request_id
from tests.billing.test_engine_hours import engine_request
from tests.billing.world import ROUTES, World, make_world

MONTHS = ("2026-08", "2026-09", "2026-10")
FIRST_US = at("2026-08-01T00:00:00Z")
NOW_US = at("2026-11-29T00:00:00Z")
STEPS = 24


class Chaos:
    """Each step is one thing that an operator or a caller does; what is refused changes nothing."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.done: list[str] = []

    async def step(self) -> None:
        moves: list[Callable[[], Awaitable[object]]] = [
            self.use, self.use, self.use, self.engine, self.reprice, self.rerate, self.issue, self.issue, self.part, self.whole,
            self.adjust, self.unadjust,
        ]  # fmt: skip
        move = self.random.choice(moves)
        try:
            await move()
        except BillingError as error:
            self.done.append(f"{move.__name__}: {error}")
        else:
            self.done.append(move.__name__)

    def moment(self) -> int:
        return FIRST_US + self.random.randrange(100 * 24) * HOUR_US

    async def use(self) -> None:
        usage = Usage(input=self.random.randrange(10**6), output=self.random.randrange(1, 10**6))
        await self.world.use(self.random.choice(list(ROUTES)), usage, self.moment())

    async def engine(self) -> None:
        books = await self.world.books()
        made = engine_request(books, self.world, request_id(self.moment()), self.random.randrange(1, 10**10))
        async with self.world.engine.begin() as connection:
            await record(connection, [made])

    async def reprice(self) -> None:
        micro = self.random.randrange(1, 10**6)
        start_us = FIRST_US + self.random.randrange(8) * 14 * DAY_US
        draft = PriceDraft("deepseek", "deepseek-chat", "output", "USD", f"0.{micro:06d}", start_us)
        async with self.world.engine.begin() as connection:
            await publish_prices(connection, [draft], supersede=True)

    async def rerate(self) -> None:
        asked = RerateRange(FIRST_US, NOW_US - 10 * DAY_US if self.random.random() < 0.2 else FIRST_US + 90 * DAY_US)
        async with self.world.engine.connect() as connection:
            books = await load_books(connection)
            plan = (await look(connection, asked, books, _same)).plan
            changes = await planned(connection, asked, books, _same, plan)
        async with self.world.engine.begin() as connection:
            await apply_rerating(connection, changes, books, _same, self.new_id, reason="wrong", actor="ann")

    def new_id(self) -> UUID:
        return request_id(NOW_US)

    async def issue(self) -> None:
        await self.world.issue(self.random.choice(MONTHS))

    async def part(self) -> None:
        row = await self.some_statement()
        lines = self.random.sample(range(1, 6), 2) if self.random.random() < 0.5 else []
        amount = None if lines else Money("CNY", self.random.randrange(1, 500) * 10**7).amount
        async with self.world.engine.begin() as connection:
            await credit_part(
                connection, self.world.team.id, row, reason="outage", actor="ann", lines=lines, amount=amount
            )

    async def whole(self) -> None:
        row = await self.some_statement()
        async with self.world.engine.begin() as connection:
            await credit_statement(connection, self.world.team.id, row, reason="wrong", actor="ann")

    async def some_statement(self) -> int:
        async with self.world.engine.connect() as connection:
            rows = await list_statements(connection, self.world.team.id, limit=100)
        return self.random.choice([row.id for row in rows] or [1])

    async def adjust(self) -> None:
        nano = self.random.randrange(-(10**12), 10**12)
        async with self.world.engine.begin() as connection:
            amount = Money("CNY", nano).amount
            await adjust(connection, team_id=self.world.team.id, amount=amount, reason="goodwill", actor="ann")

    async def unadjust(self) -> None:
        async with self.world.engine.begin() as connection:
            entries = await list_entries(connection, self.world.team.id, limit=50)
            entry = self.random.choice([each.id for each in entries] or [1])
            await reverse_entry(connection, team_id=self.world.team.id, entry_id=entry, reason="back", actor="ann")

    async def check(self) -> None:
        async with reading(self.world.engine) as connection:
            assert await find_drift(connection, FIRST_US, NOW_US + DAY_US) == []
            assert (await check_wallet(connection, self.world.team.id)).agrees
            assert await broken_links(connection) == []
            rows = await list_statements(connection, self.world.team.id, limit=1000)
        by_statement: dict[int, int] = {}
        for row in rows:
            if row.state == "issued":
                payable = nano_of(row.document.totals.payable)
                assert payable == sum(nano_of(line.payable) for line in row.document.lines)
                by_statement[row.corrects_id or row.id] = by_statement.get(row.corrects_id or row.id, 0) + payable
        for row in rows:
            if row.kind == "statement" and row.state == "issued":
                left = by_statement[row.id]
                whole = nano_of(row.document.totals.payable)
                assert left == 0 if row.credited_by else left == whole - row.credited_nano
                assert whole <= 0 or 0 <= left <= whole

    async def close(self) -> None:
        """At the end every month is stated: rows = rollups = statements."""
        for month in MONTHS:
            try:
                await self.world.issue(month)
            except BillingError as error:
                self.done.append(f"last {month}: {error}")
        draft = await self.world.draft("2026-11")
        drafted = sum(nano_of(line.settled) for line in draft.document.lines)
        stated = await self.world.sum("SELECT sum(settled_nano) FROM statement_cells")
        assert stated + drafted == await self.world.sum("SELECT sum(settled_nano) FROM usage"), self.done


def _same(provider: str) -> str:
    return "deepseek" if provider == "local" else provider


@pytest.mark.parametrize("seed", [4])
async def test_rule_10_the_books_agree_whatever_happens_in_whatever_order(database: AsyncEngine, seed: int) -> None:
    world = await make_world(database)
    chaos = Chaos(world, seed)
    for number in range(STEPS):
        await chaos.step()
        if number % 8 == 7:
            await chaos.check()
    await chaos.close()
    await chaos.check()
    kinds = {each.partition(":")[0] for each in chaos.done if ":" not in each}
    assert len(kinds) >= 6, chaos.done


async def test_rule_10_the_books_agree_when_it_all_happens_at_once(database: AsyncEngine) -> None:
    world = await make_world(database)
    for number in range(8):
        await world.use("gpt-4.1", Usage(output=10**6), FIRST_US + number * DAY_US)
    first = await world.issue("2026-08")
    several = [Chaos(world, seed) for seed in range(4)]

    async def run(chaos: Chaos) -> None:
        for _ in range(8):
            await chaos.step()

    await asyncio.gather(*(run(chaos) for chaos in several))
    await several[0].check()
    await several[0].close()
    async with world.engine.connect() as connection:
        duplicates = text("SELECT count(*) - count(DISTINCT number) FROM statements WHERE number IS NOT NULL")
        assert await connection.scalar(duplicates) == 0
    assert first.number == 1
