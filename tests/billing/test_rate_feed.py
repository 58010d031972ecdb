"""A feed's file is taken whole or not at all: positive, dated, near the last, never over what stands."""

from __future__ import annotations

import asyncio
from datetime import date
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from billing import ecb
from billing.books import load_books
from billing.currencies import MINOR_DIGITS
from billing.errors import InvalidRate
from billing.exchange import RateKind
from billing.rate_feed import FeedResult, newest_of, parse_feed, take_rates
from billing.recording import record_rate
from billing.times import DAY_US, HOUR_US
from tests.billing.helpers import at

FRIDAY = at("2026-10-30T15:00:00Z")
"""16:00 in Frankfurt, an hour after the change to winter time."""
NOW = FRIDAY + HOUR_US


def xml(*days: tuple[str, dict[str, str]]) -> str:
    """As the bank writes it."""
    inner = "".join(
        f"<Cube time='{day}'>"
        + "".join(f"<Cube currency='{code}' rate='{rate}'/>" for code, rate in rates.items())
        + "</Cube>"
        for day, rates in days
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<gesmes:Envelope xmlns:gesmes="http://www.gesmes.org/xml/2002-08-01" '
        'xmlns="http://www.ecb.int/vocabulary/2002-08-01/eurofxref"><gesmes:subject>Reference rates</gesmes:subject>'
        f"<gesmes:Sender><gesmes:name>European Central Bank</gesmes:name></gesmes:Sender><Cube>{inner}</Cube></gesmes:Envelope>"
    )


OCTOBER = xml(("2026-10-30", {"USD": "1.0873", "CNY": "7.2337", "JPY": "166.05"}))


async def take(
    engine: AsyncEngine, text: str, *, form: str = "ecb", source: str = ecb.SOURCE, at_us: int = NOW, **options: Any
) -> FeedResult:
    async with engine.begin() as connection:
        return await take_rates(
            connection,
            parse_feed(form, text),
            source=source,
            at_us=at_us,
            max_step_percent=options.pop("max_step_percent", 10),
            **options,
        )


async def crossed(engine: AsyncEngine, at_us: int = NOW) -> str:
    async with engine.begin() as connection:
        rates = (await load_books(connection)).rates
    quote = rates.find(RateKind.REFERENCE, "USD", "CNY", at_us, rates.version)
    return "none" if quote is None else f"{quote.numerator / quote.denominator:.4f}"


async def count(engine: AsyncEngine) -> int:
    async with engine.begin() as connection:
        return len((await load_books(connection)).rates.rows)


async def test_the_bank_s_file_is_taken_once_and_a_cross_of_it_is_the_market_s(database: AsyncEngine) -> None:
    assert await take(database, OCTOBER) == FeedResult(3, 0, FRIDAY)
    assert await take(database, OCTOBER) == FeedResult(0, 3, FRIDAY)
    assert await crossed(database) == "6.6529"
    async with database.begin() as connection:
        assert await newest_of(connection, ecb.SOURCE) == FRIDAY
        assert await newest_of(connection, "feed other") is None


async def test_history_and_feed_of_the_bank_are_one_source(sqlite_database: AsyncEngine) -> None:
    history = "Date,USD,JPY,CNY,\n2026-10-30,1.0873,166.05,7.2337,\n2026-10-29,1.08,166,7.2,\n"
    async with sqlite_database.begin() as connection:
        rates = list(ecb.parse(history.replace(",\n", "\n"), date(2026, 1, 1)))
        await ecb.import_rates(connection, rates)
    assert await take(sqlite_database, OCTOBER) == FeedResult(0, 3, FRIDAY)


async def test_ten_replicas_that_fetch_at_once_record_each_rate_once(database: AsyncEngine) -> None:
    done = await asyncio.gather(*(take(database, OCTOBER) for _ in range(10)))
    assert sorted(each.added for each in done) == [0] * 9 + [3]
    assert await count(database) == 3


async def test_several_days_close_the_gap_of_an_outage_oldest_first(sqlite_database: AsyncEngine) -> None:
    await take(sqlite_database, OCTOBER)
    later = xml(
        ("2026-11-03", {"USD": "1.25", "CNY": "8.2", "JPY": "180"}),
        ("2026-11-02", {"USD": "1.17", "CNY": "7.7", "JPY": "170"}),
        ("2026-10-30", {"USD": "1.0873", "CNY": "7.2337", "JPY": "166.05"}),
    )
    newest = at("2026-11-03T15:00:00Z")
    assert await take(sqlite_database, later, at_us=newest) == FeedResult(6, 3, newest)
    older = xml(("2026-10-29", {"USD": "1.08"}))
    assert await take(sqlite_database, older, at_us=newest) == FeedResult(0, 0, at("2026-10-29T15:00:00Z")), (
        "an old copy adds nothing"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (xml(("2026-11-30", {"USD": "1.08"})), "has not come yet"),
        (xml(("2026-10-20", {"USD": "1.08"})), "stale: its newest rate is of 2026-10-20"),
        (
            xml(("2026-10-30", {"USD": "1.3", "CNY": "7.2337"})),
            r"EUR/USD 1.3 .* is more than 10 % off the last one, 1.0873",
        ),
        (xml(("2026-10-30", {"USD": "0.9", "CNY": "7.2337"})), "more than 10 % off"),
        (xml(("2026-10-30", {"CNY": "7.3"})), "partial: it has no rate of USD"),
        (xml(("2026-10-30", {"USD": "-1.08"})), "no positive decimal number"),
        (xml(("2026-10-30", {"USD": "0"})), "cannot be a rate"),
        (xml(("2026-10-30", {"USD": "1e30"})), "is beyond|cannot be a rate"),
        (xml(("2026-10-30", {"USD": "1.0000000000001"})), "more than 12 decimals"),
        (xml(("2026-10-30", {"USD": "NaN"})), "no positive decimal number"),
        (xml(("30 October 2026", {"USD": "1.08"})), "is no day"),
        (xml(("2026-10-30", {"USD": "1.08"}), ("2026-10-30", {"USD": "1.09"})), "says a rate twice"),
        (xml(), "holds no rate"),
        ("<html><body>Down for maintenance</body></html>", "holds no rate"),
        ("<Cube time='2026-10-30'><Cube", "is no XML"),
        ("", "is no XML"),
        ('<!DOCTYPE a [<!ENTITY b "bbb">]><a>&b;</a>', "document type"),
    ],
)
async def test_rule_06_a_file_that_cannot_be_right_changes_nothing(
    sqlite_database: AsyncEngine, text: str, why: str
) -> None:
    engine = sqlite_database
    before = xml(("2026-10-29", {"USD": "1.0873", "CNY": "7.2337"}))
    await take(engine, before, at_us=FRIDAY)
    with pytest.raises(InvalidRate, match=why):
        await take(engine, text, currencies=["USD", "CNY"] if "partial" in why else ())
    assert await count(engine) == 2


async def test_what_stands_is_never_overwritten_and_a_pair_has_one_direction(database: AsyncEngine) -> None:
    await take(database, OCTOBER)
    with pytest.raises(InvalidRate, match=r"differs from what the books hold \(7.2337\)"):
        await take(database, xml(("2026-10-30", {"USD": "1.0873", "CNY": "7.2338"})))
    said = '{"base":"USD","date":"2026-10-30","rates":{"EUR":0.92}}'
    with pytest.raises(InvalidRate, match="its inverse is derived"):
        await take(database, said, form="json", source="feed b", at_us=NOW + DAY_US)
    assert await count(database) == 3


async def test_a_true_jump_is_recorded_by_hand_and_the_feed_goes_on_from_there(sqlite_database: AsyncEngine) -> None:
    await take(sqlite_database, xml(("2026-10-29", {"TRY": "40"})))
    devalued = xml(("2026-10-30", {"TRY": "52"}))
    with pytest.raises(InvalidRate, match="record it by hand"):
        await take(sqlite_database, devalued)
    async with sqlite_database.begin() as connection:
        await record_rate(
            connection,
            base="EUR",
            quote="TRY",
            kind="reference",
            rate="52",
            source="manual",
            effective_from_us=FRIDAY - 1,
        )
    assert (await take(sqlite_database, devalued)).added == 1


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ('{"base":"EUR","date":"2026-10-30","rates":{"USD":1.0873,"CNY":"7.2337","XXX":1}}', ["1.0873", "7.2337"]),
        ('{"amount":1.0,"base":"EUR","date":"2026-10-30","rates":{"JPY":1.66e2}}', ["166"]),
        ('{"base":"USD","published_at":"2026-10-30T15:00:00+00:00","rates":{"CNY":6.6529}}', ["6.6529"]),
    ],
)
def test_json_figures_are_read_as_the_text_that_they_are(text: str, rates: list[str]) -> None:
    assert [str(rate).split()[1] for rate in parse_feed("json", text)] == rates


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"base":"EUR","rates":{"USD":1.08}}', "not dated"),
        ('{"base":"EURO","date":"2026-10-30","rates":{"USD":1.08}}', "no ISO 4217"),
        ('{"base":"EUR","date":"2026-10-30","rates":{"EUR":1}}', "holds no rate"),
        ('{"base":"EUR","date":"2026-10-30","rates":{"USD":null}}', "no positive decimal"),
        ('{"base":"EUR","date":"2026-10-30","rates":{"USD":[1]}}', "no positive decimal"),
        ('{"base":"EUR","amount":100,"date":"2026-10-30","rates":{"USD":1.08}}', "for one unit"),
        ('{"base":"EUR","date":"2026-10-30","rates":[1]}', "no object of base"),
        ('{"base":"EUR","date":"0001-01-01","rates":{"USD":1}}', "no day of this century"),
        ('{"base":"EUR","published_at":"2026-10-30","rates":{"USD":1}}', "no offset"),
        ("[" * 5000, "no object of base"),
        ("<html>", "no object of base"),
    ],
)
def test_json_that_is_not_a_file_of_rates_says_why(text: str, why: str) -> None:
    with pytest.raises(InvalidRate, match=why):
        parse_feed("json", text)


@settings(max_examples=200, deadline=None)
@given(
    text=st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda raw: raw.decode(errors="replace"))),
    form=st.sampled_from(["ecb", "json"]),
)
def test_no_text_at_all_makes_more_than_a_refusal(text: str, form: str) -> None:
    try:
        assert parse_feed(form, text)
    except InvalidRate:
        return


_pairs = iter(sorted(set(MINOR_DIGITS) - {"EUR"}))
"""Each example has a pair of its own."""


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(500_000, 1_500_000), min_size=1, max_size=5))
async def test_no_two_neighbours_of_a_pair_are_ever_further_apart_than_the_step(
    sqlite_database: AsyncEngine, steps: list[int]
) -> None:
    quote = next(_pairs)
    level = 10**6
    for number, step in enumerate(steps):
        level = max(1000, level * step // 10**6)
        moment = f"2026-10-30T{16 + number}:00:00Z"
        said = f'{{"base":"EUR","published_at":"{moment}","rates":{{"{quote}":{level // 10**6}.{level % 10**6:06d}}}}}'
        try:
            await take(sqlite_database, said, form="json", source=f"feed {quote}", at_us=at(moment) + HOUR_US)
        except InvalidRate:
            continue
    async with sqlite_database.begin() as connection:
        rows = [row for row in (await load_books(connection)).rates.rows if row.quote == quote]
    assert all(abs(b.rate_pico - a.rate_pico) * 10 <= a.rate_pico for a, b in pairwise(rows))
