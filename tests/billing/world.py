"""A database with the shipped book, a team that pays CNY 1 for each list USD 1, and requests that it made."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.books import Books, load_books
from billing.ledger import AttemptRecord, UsageRecord, record
from billing.rating import AttemptUsage, Payer, rate
from billing.recording import record_terms
from billing.seed import seed
from billing.statements import StatementRow, draft_statement, issue_statement
from billing.teams import TeamRow, create_team
from billing.times import time_us_of
from billing.usage import Usage
from tests.billing.helpers import at, request_id

ROUTES = {
    "gpt-4.1": "openai",
    "claude-sonnet-4-5": "anthropic",
    "gemini-2.5-flash": "google",
    "deepseek-chat": "deepseek",
}


@dataclass(frozen=True, slots=True)
class World:
    """One connection's worth of helpers is not kept: each step is a transaction of its own, as it is in life."""

    engine: AsyncEngine
    team: TeamRow

    async def books(self) -> Books:
        async with self.engine.begin() as connection:
            return await load_books(connection)

    async def use(
        self, model: str, usage: Usage, moment: str | int, *, books: Books | None = None, team: TeamRow | None = None
    ) -> UsageRecord:
        """One answered request of that moment, rated and recorded."""
        made = request(books or await self.books(), team or self.team, model, usage, moment)
        async with self.engine.begin() as connection:
            assert (await record(connection, [made])).inserted == 1
        return made

    async def draft(self, month: str, team: TeamRow | None = None) -> StatementRow:
        async with self.engine.begin() as connection:
            return await draft_statement(connection, (team or self.team).id, month)

    async def issue(self, month: str, team: TeamRow | None = None) -> StatementRow:
        draft = await self.draft(month, team)
        async with self.engine.begin() as connection:
            return await issue_statement(connection, draft.team_id, draft.id)

    async def sum(self, sql: str) -> int:
        async with self.engine.connect() as connection:
            return int(await connection.scalar(text(sql)) or 0)


def request(
    books: Books, team: TeamRow, model: str, usage: Usage, moment: str | int, id_: UUID | None = None
) -> UsageRecord:
    id_ = id_ or request_id(at(moment) if isinstance(moment, str) else moment)
    provider = ROUTES.get(model, "nobody")
    attempt = AttemptUsage(1, provider, model, provider, usage)
    pins = books.pins()
    payer = Payer(team.id, team.settlement_currency)
    rated = rate(books, pins, at_us=time_us_of(id_), payer=payer, charged=attempt, attempts=[attempt])
    outcome = AttemptRecord(
        sequence=1,
        provider=provider,
        provider_model=model,
        status="completed",
        usage=usage,
        cost=rated.attempts[0].cost,
        price_row_ids=rated.attempts[0].price_row_ids,
        error=None,
        started_at_us=time_us_of(id_),
        latency_us=1,
        ttft_us=1,
    )
    return UsageRecord(
        id=id_,
        team_id=team.id,
        key_id="key_a",
        model=model,
        provider=provider,
        provider_model=model,
        surface="chat",
        status="completed",
        estimated=False,
        streamed=False,
        usage=usage,
        rated=rated,
        attempts=(outcome,),
        tags={},
        latency_us=1,
        ttft_us=1,
        error=None,
        pins=pins,
        settlement_currency=team.settlement_currency,
    )


async def make_world(engine: AsyncEngine, timezone: str = "Asia/Shanghai") -> World:
    async with engine.begin() as connection:
        await seed(connection)
        team = await create_team(connection, name="search", settlement_currency="CNY", timezone=timezone)
        await settle_one_to_one(connection, team)
    return World(engine, team)


async def settle_one_to_one(connection: AsyncConnection, team: TeamRow) -> None:
    await record_terms(
        connection,
        team_id=team.id,
        policy="fixed",
        rate="1",
        base="USD",
        quote=team.settlement_currency,
        effective_from_us=at("2026-01-01T00:00:00Z"),
    )
