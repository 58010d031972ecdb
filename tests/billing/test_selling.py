"""What a team is sold at beside what a request costs: own lists, multiples, their pins, and the margin between the two."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import Books, Pins, load_books
from billing.database import reading
from billing.errors import BillingError
from billing.exchange import RateKind
from billing.ledger import list_usage, record, usage_buckets, usage_row
from billing.money import MICRO, Money, divide_half_even
from billing.publishing import publish_price
from billing.rating import Payer, Rated, rate, rate_in_full, worst_case
from billing.reads import UsageFilters
from billing.recording import record_sell
from billing.selling import SellBook, SellRow
from billing.teams import create_team
from billing.times import QUARTER_US
from billing.usage import Usage
from tests.billing.helpers import (
    FOUNDING,
    NOON_US,
    at,
    books,
    fixed_terms,
    price,
    rate_row,
    rated_record,
    request_id,
    used,
)

START_US = at("2026-01-01T00:00:00Z")
TEAM = Payer("team_a", "CNY")


def sell(
    row_id: int, value: str, *, price_list: str | None = None, model: str | None = None, since: int = START_US
) -> SellRow:
    """`value` is a multiplier ("1.25") or a price list ("@acme")."""
    own = value.removeprefix("@") if value.startswith("@") else None
    times = None if own else int(Fraction(value) * MICRO)
    return SellRow(row_id, "team_a", price_list, model, own, times, since)


def world(*rows: SellRow, base: Books = FOUNDING) -> Books:
    return Books(base.prices, base.rates, base.terms, SellBook(rows))


def rated(known: Books, usage: Usage, payer: Payer = TEAM, pins: Pins | None = None) -> Rated:
    attempt = used(usage)
    return rate(known, pins or known.pins(), at_us=NOON_US, payer=payer, charged=attempt, attempts=[attempt])


def test_a_multiple_raises_what_the_team_pays_and_not_what_the_provider_is_paid() -> None:
    million = Usage(output=1_000_000)
    plain, dearer = rated(FOUNDING, million), rated(world(sell(1, "1.25")), million)
    assert (plain.list, plain.settled, plain.sell_id) == (Money.parse("0.42", "USD"), Money.parse("0.42", "CNY"), None)
    assert (dearer.list, dearer.settled) == (Money.parse("0.525", "USD"), Money.parse("0.525", "CNY"))
    assert (dearer.policy, dearer.cost) == (Money.parse("3.8325", "CNY"), plain.cost)
    assert (dearer.sell_id, dearer.price_row_ids) == (1, plain.price_row_ids)
    # cost USD 0.42 at the reference rate of 6.6529 is CNY 2.794218
    assert plain.margin == Money.parse("-2.374218", "CNY")
    assert dearer.margin == Money.parse("-2.269218", "CNY")


def test_an_own_list_sells_at_its_own_prices_in_its_own_currency() -> None:
    base = books(
        price(1, "input", "0.28"),
        price(2, "output", "0.42"),
        price(3, "input", "2", price_list="acme", currency="CNY"),
        price(4, "output", "3", price_list="acme", currency="CNY"),
        rate_row(1, "USD/CNY", RateKind.REFERENCE, "6.6529", "2026-11-27T15:00:00Z"),
        fixed_terms(1, "1"),
    )
    found = rated(world(sell(1, "@acme"), base=base), Usage(input=1_000_000, output=1_000_000))
    assert (found.list, found.settled, found.cost) == (
        Money.parse("5", "CNY"),
        Money.parse("5", "CNY"),
        Money.parse("0.70", "USD"),
    )
    assert (found.price_row_ids, found.attempts[0].price_row_ids) == ((3, 4), (1, 2))
    assert found.margin == Money.parse("0.34297", "CNY")
    assert found.rate_ids == (1,)
    cached = rated(world(sell(1, "@acme"), base=base), Usage(input=1, cache_read=9))
    assert cached.unpriced == "no price for cache_read of deepseek-chat on price list acme"
    assert (cached.settled, cached.margin) == (None, None)
    elsewhere = rated(world(sell(1, "@unknown"), base=base), Usage(output=1_000_000))
    assert (elsewhere.settled, elsewhere.sell_id) == (Money.parse("0.42", "CNY"), None)


def test_the_most_specific_row_in_force_applies_and_a_pin_keeps_later_rows_out() -> None:
    known = world(
        sell(1, "2"),
        sell(2, "3", model="deepseek-chat"),
        sell(3, "4", price_list="deepseek"),
        sell(4, "5", price_list="deepseek", model="deepseek-chat", since=NOON_US + 1),
        sell(5, "6", price_list="other", model="deepseek-chat"),
        sell(6, "7", model="other"),
        sell(7, "1", since=START_US + 1),
    )
    assert rated(known, Usage(output=100)).sell_id == 2
    pinned = Pins(known.pins().book, known.pins().rates, known.pins().terms, 1)
    assert rated(known, Usage(output=100), pins=pinned).sell_id == 1
    assert rated(known, Usage(output=100), pins=Pins(1, 2, 1)).sell_id is None
    assert rated(known, Usage(output=100), payer=Payer("team_b", "USD")).sell_id is None
    assert known.sell.find("team_a", "x", "y", NOON_US, 99) == known.sell.rows[6]
    assert known.sell.by_id(3) == known.sell.rows[2]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 1000 * MICRO),
    st.integers(0, 3_000_000),
    st.integers(0, 3_000_000),
    st.integers(1, 20 * MICRO),
)
def test_an_amount_at_a_multiple_is_the_exact_rational_rounded_once(
    multiplier: int, plain: int, output: int, rate_micro: int
) -> None:
    value = f"{rate_micro // MICRO}.{rate_micro % MICRO:06}"
    base = books(
        price(1, "input", "0.28"),
        price(2, "output", "0.420001"),
        rate_row(1, "USD/CNY", RateKind.REFERENCE, value, "2026-11-27T15:00:00Z"),
        fixed_terms(1, value),
    )
    row = SellRow(1, "team_a", None, None, None, multiplier, START_US)
    known, usage = world(row, base=base), Usage(input=plain, output=output)
    found = rated(known, usage)
    expected = {"list": 0, "settled": 0}
    for quantity, micro in ((plain, 280_000), (output, 420_001)):
        exact = Fraction(quantity * micro * 1000 * multiplier, 1_000_000 * MICRO)
        expected["list"] += round(exact)
        expected["settled"] += round(exact * Fraction(rate_micro, MICRO))
    assert found.list is not None
    assert found.settled is not None
    assert found.cost is not None
    assert found.margin is not None
    assert (found.list.nano, found.settled.nano) == (expected["list"], expected["settled"])
    assert found.margin.nano == found.settled.nano - divide_half_even(found.cost.nano * rate_micro, MICRO)
    attempt = used(usage)
    in_full = rate_in_full(known, known.pins(), at_us=NOON_US, payer=TEAM, charged=attempt, attempts=[attempt])
    assert in_full == found
    most = worst_case(
        known, known.pins(), at_us=NOON_US, payer=TEAM, price_list="deepseek", model="deepseek-chat",
        input_tokens=plain, output_tokens=output,
    )  # fmt: skip
    assert found.settled.nano <= most.nano + 2


async def test_rows_rollups_and_reports_keep_the_margin_and_flag_a_negative_one(database: AsyncEngine) -> None:
    good = rated_record(Usage(output=1_000_000), world=world(sell(1, "10")), id_=request_id(NOON_US))
    bad = rated_record(Usage(output=1_000_000), id_=request_id(NOON_US + 1000))
    async with database.begin() as connection:
        await record(connection, [good, bad, good])
    async with reading(database) as connection:
        views = [await usage_row(connection, each.id) for each in (good, bad)]
        flagged = await list_usage(connection, UsageFilters(negative_margin=True))
        rest = await list_usage(connection, UsageFilters(negative_margin=False))
        start_us = NOON_US - NOON_US % QUARTER_US
        (bucket,) = (await usage_buckets(connection, start_us, start_us + QUARTER_US, "hour")).data
    assert views[0] is not None
    assert views[1] is not None
    assert views[0].margin is not None
    assert views[1].margin is not None
    assert (views[0].margin.amount, views[0].negative_margin) == ("1.405782", False)
    assert (views[1].margin.amount, views[1].negative_margin) == ("-2.374218", True)
    assert [view.id for view in flagged.data] == [str(bad.id)]
    assert [view.id for view in rest.data] == [str(good.id)]
    assert bucket.negative_margin == 1
    assert [(each.amount, each.currency) for each in bucket.margin] == [("-0.968436", "CNY")]


async def test_a_margin_that_is_not_known_is_no_zero(database: AsyncEngine) -> None:
    unknown = books(price(1, "output", "0.42"), fixed_terms(1, "1"))
    one_currency = books(price(1, "output", "0.42"))
    million = Usage(output=1_000_000)
    quarter = NOON_US - NOON_US % QUARTER_US
    async with database.begin() as connection:
        await record(
            connection,
            [
                rated_record(million, world=unknown, id_=request_id(quarter)),
                rated_record(million, world=one_currency, id_=request_id(quarter + 1)),
                rated_record(million, world=unknown, id_=request_id(quarter + QUARTER_US)),
                rated_record(million, id_=request_id(quarter + QUARTER_US + 1), model="sold"),
                rated_record(million, id_=request_id(quarter + 2 * QUARTER_US)),
                rated_record(million, world=one_currency, currency="USD", id_=request_id(quarter + 3 * QUARTER_US)),
            ],
        )
    found = []
    async with reading(database) as connection:
        for start_us in range(quarter, quarter + 4 * QUARTER_US, QUARTER_US):
            page = await usage_buckets(connection, start_us, start_us + QUARTER_US, "hour", group_by=["model"])
            found += [
                ([(each.amount, each.currency) for each in bucket.margin], bucket.margin_partial)
                for bucket in page.data
            ]
    known = [("-2.374218", "CNY")]
    assert found == [([], True), ([], True), (known, False), (known, False), ([("0", "USD")], False)]


async def test_a_sell_price_is_recorded_checked_and_loaded_with_the_books(sqlite_database: AsyncEngine) -> None:
    async with sqlite_database.begin() as connection:
        team = await create_team(connection, name="acme", settlement_currency="USD")
        await publish_price(
            connection, price_list="own", model="m", token_class="output", currency="USD", amount="1",
            effective_from_us=START_US,
        )  # fmt: skip
        first = await record_sell(connection, team_id=team.id, multiplier="1.25", effective_from_us=START_US)
        second = await record_sell(connection, team_id=team.id, sell_list="own", model="m", effective_from_us=START_US)
        loaded = await load_books(connection)
    assert loaded.sell.rows == (first, second)
    assert loaded.pins().sell == second.id
    for changed, field in (
        ({}, "multiplier"),
        ({"multiplier": "1", "sell_list": "own"}, "multiplier"),
        ({"multiplier": "-1"}, "multiplier"),
        ({"multiplier": "1000.000001"}, "multiplier"),
        ({"multiplier": "1.0000001"}, "multiplier"),
        ({"sell_list": "nowhere"}, "sell_list"),
        ({"multiplier": "1", "model": ""}, "model"),
        ({"multiplier": "1", "team_id": "team_none"}, "team_id"),
        ({"multiplier": "1", "effective_from_us": 5}, "effective_from"),
    ):
        async with sqlite_database.begin() as connection:
            body = {"team_id": team.id, "effective_from_us": START_US, **changed}
            with pytest.raises(BillingError) as caught:
                await record_sell(connection, **body)  # type: ignore[arg-type]
            assert caught.value.field == field
