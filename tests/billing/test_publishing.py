"""What may enter the catalog: checked, refused with the field named, never replaced."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing import tables
from billing.books import load_books
from billing.database import catalog_version, open_database, reading
from billing.errors import BillingError, Conflict, InvalidPrice
from billing.price_file import parse_csv, parse_yaml
from billing.publishing import publish_price, publish_prices
from billing.recording import record_rate, record_terms
from billing.seed import seed, shipped_book
from billing.teams import create_team, get_team, list_teams, update_team
from billing.usage import TokenClass
from tests.billing.helpers import at

SINCE = at("2026-01-01T00:00:00Z")
PRICE: dict[str, Any] = {
    "price_list": "deepseek",
    "model": "deepseek-chat",
    "token_class": "output",
    "currency": "USD",
    "amount": "0.42",
    "effective_from_us": SINCE,
}
RATE: dict[str, Any] = {
    "base": "USD",
    "quote": "CNY",
    "kind": "policy",
    "rate": "7.3",
    "source": "manual",
    "effective_from_us": SINCE,
}


async def test_posting_a_price_publishes_a_new_version_the_old_one_plus_the_row(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        before = await catalog_version(connection)
        first = await publish_price(connection, **PRICE)
        second = await publish_price(connection, **{**PRICE, "token_class": "input", "amount": "0.280000"})
        assert await catalog_version(connection) == before + 2
    assert (first.book_version, second.book_version) == (1, 2)
    assert second.amount_micro == 280_000
    async with reading(database) as connection:
        books = await load_books(connection)
        hashes = (await connection.execute(select(tables.price_books.c.hash))).scalars().all()
    assert books.prices.rows == (first, second)
    assert books.pins().book == 2
    assert len(set(hashes)) == 2
    assert all(len(each) == 64 for each in hashes)


async def test_the_same_price_again_publishes_nothing_and_another_amount_is_refused(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        first = await publish_price(connection, **PRICE)
        assert await publish_price(connection, **PRICE) == first
    async with database.begin() as connection:
        with pytest.raises(Conflict, match=r"already costs 0\.42 USD per mtok from 2026-01-01T00:00:00Z") as caught:
            await publish_price(connection, **{**PRICE, "amount": "0.43"})
        assert caught.value.field == "effective_from"
    async with reading(database) as connection:
        assert await connection.scalar(select(func.count()).select_from(tables.price_books)) == 1


async def test_a_book_is_published_whole_or_not_at_all(database: AsyncEngine) -> None:
    book = shipped_book()
    broken = [*book.drafts, type(book.drafts[0])(**{**PRICE, "amount": "-1"})]
    async with database.begin() as connection:
        with pytest.raises(InvalidPrice):
            await publish_prices(connection, broken)
        assert await connection.scalar(select(func.count()).select_from(tables.price_rows)) == 0
        twice = [*book.drafts, book.drafts[0]]
        with pytest.raises(Conflict, match="same key"):
            await publish_prices(connection, twice)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"amount": "-0.01"}, "amount_per_mtok"),
        ({"amount": "0.4200001"}, "amount_per_mtok"),
        ({"amount": "1e30"}, "amount_per_mtok"),
        ({"amount": "1000000001"}, "amount_per_mtok"),
        ({"amount": "free"}, "amount_per_mtok"),
        ({"amount": "NaN"}, "amount_per_mtok"),
        ({"currency": "usd"}, "currency"),
        ({"currency": "BTC"}, "currency"),
        ({"token_class": "completion"}, "token_class"),
        ({"token_class": "reasoning"}, "token_class"),
        ({"unit": "token"}, "unit"),
        ({"unit": "image"}, "unit"),
        ({"token_class": "web_search", "unit": "mtok"}, "unit"),
        ({"processing": "async"}, "processing"),
        ({"min_input_tokens": -1}, "min_input_tokens"),
        ({"model": ""}, "model"),
        ({"model": "x" * 301}, "model"),
        ({"price_list": "a\nb"}, "provider"),
        ({"effective_from_us": 0}, "effective_from"),
        ({"effective_from_us": 10**17}, "effective_from"),
    ],
)
async def test_a_price_that_cannot_be_names_its_field(sqlite_url: str, change: dict[str, Any], field: str) -> None:
    await _refused(sqlite_url, publish_price, {**PRICE, **change}, field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rate": "0"}, "rate"),
        ({"rate": "-7.3"}, "rate"),
        ({"rate": "7.3000000000001"}, "rate"),
        ({"rate": "99999999"}, "rate"),
        ({"rate": "1e30"}, "rate"),
        ({"rate": "0.000000001"}, "rate"),
        ({"kind": "official"}, "kind"),
        ({"base": "US"}, "base"),
        ({"quote": "USD"}, "quote"),
        ({"source": " "}, "source"),
        ({"effective_from_us": -1}, "effective_from"),
    ],
)
async def test_a_rate_that_cannot_be_names_its_field(sqlite_url: str, change: dict[str, Any], field: str) -> None:
    await _refused(sqlite_url, record_rate, {**RATE, **change}, field)


async def _refused(url: str, write: Any, values: dict[str, Any], field: str) -> None:
    engine = open_database(url)
    async with engine.begin() as connection:
        with pytest.raises(BillingError) as caught:
            await write(connection, **values)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    await engine.dispose()


async def test_a_rate_far_off_the_last_one_or_the_wrong_way_round_is_refused(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await record_rate(connection, **RATE)
        with pytest.raises(BillingError, match=r"more than 20 times off the last one, 7\.3"):
            await record_rate(connection, **{**RATE, "rate": "730"})
        with pytest.raises(BillingError, match="inverse is derived, never stored"):
            await record_rate(connection, **{**RATE, "base": "CNY", "quote": "USD", "rate": "0.137"})
        corrected = await record_rate(connection, **{**RATE, "rate": "7.1"})
        other_kind = await record_rate(connection, **{**RATE, "kind": "reference", "rate": "6.6529"})
    assert (corrected.id, other_kind.id) == (2, 3)


async def _terms(connection: AsyncConnection, **values: Any) -> Any:
    defaults = {"base": "USD", "quote": "CNY", "policy": "fixed", "rate": "1", "effective_from_us": SINCE}
    return await record_terms(connection, **{**defaults, **values})


async def test_terms_are_made_out_to_a_team_or_a_provider_in_the_currency_they_pay_in(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        team = (await create_team(connection, name="search", settlement_currency="CNY")).id
        assert (await _terms(connection, team_id=team)).rate_pico == 10**12
        assert (await _terms(connection, team_id=team, policy="market_plus_bps", rate=None, bps=150)).bps == 150
        assert (await _terms(connection, provider="reseller")).provider == "reseller"
        for values, field in (
            ({}, "team_id"),
            ({"team_id": team, "provider": "x"}, "team_id"),
            ({"team_id": "team_none"}, "team_id"),
            ({"team_id": team, "quote": "EUR"}, "quote"),
            ({"team_id": team, "base": "CNY"}, "base"),
            ({"team_id": team, "rate": None}, "rate"),
            ({"team_id": team, "rate": "0"}, "rate"),
            ({"team_id": team, "bps": 5}, "bps"),
            ({"team_id": team, "policy": "market_plus_bps"}, "rate"),
            ({"team_id": team, "policy": "market_plus_bps", "rate": None}, "bps"),
            ({"team_id": team, "policy": "market_plus_bps", "rate": None, "bps": -10_000}, "bps"),
            ({"team_id": team, "policy": "free"}, "policy"),
            ({"team_id": team, "effective_from_us": 1}, "effective_from"),
        ):
            with pytest.raises(BillingError) as caught:
                await _terms(connection, **values)
            assert caught.value.field == field, values
        await record_rate(connection, **{**RATE, "kind": "contract", "rate": "1"})
        assert (await _terms(connection, team_id=team, rate=None)).rate_pico is None


async def test_a_failed_write_leaves_the_catalog_version_where_it_was(database: AsyncEngine) -> None:
    async with reading(database) as connection:
        before = await catalog_version(connection)

    async def fail() -> None:
        async with database.begin() as connection:
            await publish_price(connection, **PRICE)
            await publish_price(connection, **{**PRICE, "amount": "9"})

    with pytest.raises(Conflict):
        await fail()
    async with reading(database) as connection:
        assert await catalog_version(connection) == before
        assert (await load_books(connection)).prices.rows == ()


async def test_the_shipped_book_is_seeded_once_into_an_empty_database(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        assert await seed(connection) is True
    async with database.begin() as connection:
        assert await seed(connection) is False
    async with reading(database) as connection:
        books = await load_books(connection)
    now = at("2026-11-30T00:00:00Z")
    expected = {
        ("openai", "gpt-4.1"): {"input": "2", "output": "8", "cache_read": "0.5"},
        ("anthropic", "claude-sonnet-4-5"): {
            "input": "3",
            "output": "15",
            "cache_read": "0.3",
            "cache_write_5m": "3.75",
            "cache_write_1h": "6",
        },
        ("google", "gemini-2.5-flash"): {"input": "0.3", "output": "2.5", "cache_read": "0.03"},
        ("deepseek", "deepseek-chat"): {"input": "0.28", "output": "0.42", "cache_read": "0.028"},
    }
    for (price_list, model), prices in expected.items():
        for token_class, amount in prices.items():
            row = books.prices.find(price_list, model, TokenClass(token_class), at_us=now, version=1)
            assert row is not None
            assert (row.currency, row.amount_micro) == ("USD", int(float(amount) * 10**6 + 0.5))
            assert row.source is not None
            assert "20" in row.source
    assert books.prices.covers("metergate", "smollm2-135m-instruct", at_us=now, version=1)
    (rate,) = books.rates.rows
    assert (rate.kind, rate.base, rate.quote, rate.rate_pico) == ("policy", "USD", "CNY", 7_300_000_000_000)


def test_a_price_file_says_what_is_wrong_with_it() -> None:
    header = "provider,model,token_class,currency,amount,effective_from"
    good = parse_csv(f"{header}\np,m,output,USD,0.42,2026-01-01T00:00:00Z\n")
    assert good.drafts[0].amount == "0.42"
    for text, complaint in (
        ("provider,model\np,m\n", "column 'token_class' is missing"),
        (f"{header},discount\n", "unknown column 'discount'"),
        (f"{header}\np,m,output,USD\n", "line 2: not 6 columns"),
    ):
        with pytest.raises(InvalidPrice, match=complaint):
            parse_csv(text)
    number = "models: [{provider: p, model: m, currency: USD, effective_from: '2026-01-01T00:00:00Z', prices: {output: 0.42}}]"
    with pytest.raises(InvalidPrice, match="quoted decimals"):
        parse_yaml(number)
    with pytest.raises(InvalidPrice, match="no YAML"):
        parse_yaml("models: [")


async def test_teams_keep_their_currency_and_their_names_are_their_own(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        team = await create_team(connection, name="search", settlement_currency="CNY")
        assert team.id.startswith("team_")
        assert len(team.id) == 21
        with pytest.raises(Conflict, match="exists already"):
            await create_team(connection, name="search", settlement_currency="USD")
        for values, field in (
            ({"name": " ", "settlement_currency": "CNY"}, "name"),
            ({"name": "a", "settlement_currency": "RMB"}, "settlement_currency"),
            ({"name": "a", "settlement_currency": "CNY", "billing": "free"}, "billing"),
            ({"name": "a", "settlement_currency": "CNY", "lost_charge": "all"}, "lost_charge"),
            ({"name": "a", "settlement_currency": "CNY", "credit_limit_nano": -1}, "credit_limit"),
        ):
            with pytest.raises(BillingError) as caught:
                await create_team(connection, **values)
            assert caught.value.field == field
        changed = await update_team(connection, team.id, name="find", billing="prepaid", credit_limit_nano=5)
        assert (changed.name, changed.billing, changed.credit_limit_nano) == ("find", "prepaid", 5)
        with pytest.raises(BillingError) as caught:
            await update_team(connection, team.id, settlement_currency="USD")
        assert caught.value.field == "settlement_currency"
        with pytest.raises(BillingError, match="no team 'team_none'"):
            await update_team(connection, "team_none", name="x")
    async with reading(database) as connection:
        assert await get_team(connection, team.id) == changed
        assert await get_team(connection, "team_none") is None
        assert await list_teams(connection) == [changed]
