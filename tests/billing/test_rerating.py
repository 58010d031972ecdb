"""A wrongly recorded price, rate or term: the request is rated again beside its old row, both linked, nothing edited."""

from __future__ import annotations

import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.books import Books, load_books
from billing.corrections import correctable, reverse
from billing.database import reading
from billing.errors import Conflict, InvalidCorrection, NotFound
from billing.ledger import record, spent, usage_row
from billing.money import Money
from billing.publishing import publish_price
from billing.reads import correction_chain
from billing.recording import record_sell, record_terms
from billing.rerating import rerate
from billing.teams import create_team
from billing.usage import Usage
from billing.wallets import check_wallet
from tests.billing.helpers import NOON_US, at, rated_record, request_id

START_US = at("2026-01-01T00:00:00Z")
USAGE = Usage(input=1_000_000, cache_read=10, output=500_000, reasoning=99, request=1)


async def publish(connection: AsyncConnection, kind: str, amount: str, since_us: int, unit: str | None = None) -> None:
    await publish_price(
        connection, price_list="deepseek", model="deepseek-chat", token_class=kind, currency="USD", amount=amount,
        effective_from_us=since_us, unit=unit,
    )  # fmt: skip


async def again(connection: AsyncConnection, row: object) -> tuple[str, str]:
    ids = (request_id(NOON_US + 9_000_000_000), request_id(NOON_US + 9_000_001_000))
    await rerate(connection, row, ids, reason="wrong price", actor="ann", price_list_of=lambda provider: provider)  # type: ignore[arg-type]
    return str(ids[0]), str(ids[1])


async def test_a_request_is_rated_again_at_its_own_time_with_todays_books_and_linked(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        team = await create_team(connection, name="acme", settlement_currency="CNY")
        for kind, amount in (("input", "0.28"), ("output", "42"), ("cache_read", "0.028")):
            await publish(connection, kind, amount, START_US)
        await record_terms(
            connection, base="USD", quote="CNY", policy="fixed", rate="1", team_id=team.id, effective_from_us=START_US
        )
        books: Books = await load_books(connection)
        one = rated_record(USAGE, team=team.id, world=books, payer_team=team.id)
        await record(connection, [one])
        with pytest.raises(InvalidCorrection, match="costs the same"):
            await again(connection, one.id)
        # the price was a slip of the keyboard: from a microsecond before the request on, it is another one
        await publish(connection, "output", "0.42", NOON_US - 1)
        await publish(connection, "output", "77", NOON_US + 60_000_000)
        before = await usage_row(connection, one.id)
        reversal_id, new_id = await again(connection, one.id)
    async with reading(database) as connection:
        after = await usage_row(connection, one.id)
        (link,) = await correction_chain(connection, one.id)
        total = await spent(connection, "team", team.id, "CNY", 0)
        wallet = await check_wallet(connection, team.id)
        new = await usage_row(connection, one.id.__class__(new_id))
    assert before is not None
    assert after is not None
    assert new is not None
    assert structs.replace(after, corrected_by=None) == before
    assert (link.reversal, link.replacement, link.reason, link.actor) == (reversal_id, new_id, "wrong price", "ann")
    assert after.corrected_by == link
    assert (new.kind, new.corrects, new.tokens, new.status) == ("correction", str(one.id), before.tokens, before.status)
    assert new.settled is not None
    assert new.settled.amount == "0.49000028"
    assert new.cost is not None
    assert (new.cost.amount, len(new.attempts), new.attempts[0].cost) == ("0.49000028", 1, new.cost)
    assert total == Money.parse("0.49000028", "CNY")
    assert wallet.agrees
    assert wallet.balance_nano == -total.nano


async def test_a_row_is_put_right_once_and_its_replacement_again_at_the_first_requests_time(
    sqlite_database: AsyncEngine,
) -> None:
    async with sqlite_database.begin() as connection:
        team = await create_team(connection, name="acme", settlement_currency="USD")
        for kind in ("input", "output", "cache_read"):
            await publish(connection, kind, "1", START_US)
        one = rated_record(USAGE, team=team.id, world=await load_books(connection), payer_team=team.id, currency="USD")
        await record(connection, [one])
        await record_sell(connection, team_id=team.id, multiplier="2", effective_from_us=NOON_US)
        reversal_id, second = await again(connection, one.id)
        with pytest.raises(Conflict, match=f"correct its replacement {second}"):
            await again(connection, one.id)
        with pytest.raises(Conflict, match="is a reversal"):
            await again(connection, one.id.__class__(reversal_id))
        with pytest.raises(NotFound):
            await again(connection, request_id(NOON_US))
        await record_sell(connection, team_id=team.id, multiplier="3", effective_from_us=NOON_US)
        await record_sell(connection, team_id=team.id, multiplier="9", effective_from_us=NOON_US + 1_000_000)
        _, third = await again(connection, one.id.__class__(second))
        chain = await correction_chain(connection, one.id)
        view = await usage_row(connection, one.id.__class__(third))
        last = (await correctable(connection, one.id.__class__(third))).id
        assert await reverse(connection, last, request_id(NOON_US + 10**10), reason="gone", actor="ann")
        assert await spent(connection, "team", team.id, "USD", 0) == Money("USD", 0)
    assert [each.replacement for each in chain] == [second, third]
    assert view is not None
    assert view.settled is not None
    assert view.sell is not None
    assert (view.settled.amount, view.sell.multiplier) == ("4.50003", "3")


async def test_a_row_whose_price_is_gone_is_not_corrected_into_nothing(sqlite_database: AsyncEngine) -> None:
    async with sqlite_database.begin() as connection:
        team = await create_team(connection, name="acme", settlement_currency="USD")
        one = rated_record(Usage(output=5), team=team.id, currency="USD")
        await record(connection, [one])
        with pytest.raises(InvalidCorrection, match="no amount"):
            await again(connection, one.id)
