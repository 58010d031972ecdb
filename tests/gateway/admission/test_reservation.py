"""A reservation is never smaller than what it is settled at, when the input was counted exactly: overshoot is 0, to the nano."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.books import Books
from billing.errors import NoRate
from billing.exchange import RateKind
from billing.rating import AttemptUsage, Payer, rate
from billing.usage import Usage
from gateway.admission.answers import duration
from gateway.admission.reservation import ROUNDING_NANO, Reserve, clamp, listed_nano, worst_list_nano
from gateway.settings import ModelSettings, RouteSettings
from tests.billing.helpers import NOON_US, at, books, fixed_terms, price, rate_row
from tests.gateway.admission.house import Priced

TEAM, ROUTE = Payer("team_a", "CNY"), Priced()
amounts = st.decimals(Decimal("0"), Decimal("80"), places=6).map(str)
quantities = st.one_of(st.integers(0, 40), st.integers(0, 200_000))
rates = st.decimals(Decimal("0.000001"), Decimal("900"), places=9).map(str)


def world(prices: list[str], value: str, tier: tuple[int, str] | None) -> Books:
    rows = [
        price(row_id, token_class, amount)
        for row_id, (token_class, amount) in enumerate(
            zip(("input", "cache_read", "cache_write_5m", "output"), prices, strict=True), 1
        )
    ]
    if tier is not None:
        rows += [price(5, "input", tier[1], above=tier[0]), price(6, "output", tier[1], above=tier[0])]
    return books(
        *rows, fixed_terms(1, value), rate_row(1, "USD/CNY", RateKind.REFERENCE, value, "2026-11-27T15:00:00Z")
    )


@settings(max_examples=400, deadline=None)
@given(
    st.lists(amounts, min_size=4, max_size=4),
    rates,
    st.one_of(st.none(), st.tuples(st.integers(1, 100_000), amounts)),
    quantities,
    quantities,
    quantities,
    quantities,
)
def test_nothing_settles_above_its_reservation(
    prices: list[str], value: str, tier: tuple[int, str] | None, plain: int, read: int, write: int, output: int
) -> None:
    known = world(prices, value, tier)
    pins, reserve = known.pins(), Reserve()
    usage = Usage(input=plain, cache_read=read, cache_write_5m=write, output=output)
    for _ in range(2):  # computed, and from what was kept
        reserved = reserve.settled_nano(known, pins, NOON_US, TEAM, ROUTE, usage.total_input, output)
        attempt = AttemptUsage(1, ROUTE.price_list, ROUTE.model, "deepseek", usage)
        rated = rate(known, pins, at_us=NOON_US, payer=TEAM, charged=attempt, attempts=[attempt])
        assert rated.settled is not None
        assert rated.settled.nano <= reserved
        for currency in ("USD", "CNY"):
            most = worst_list_nano(known, pins, NOON_US, TEAM, ROUTE, usage.total_input, output, currency)
            listed = listed_nano(known, pins, NOON_US, rated, currency)
            assert listed is not None and listed <= most


def test_whole_nano_per_token_are_reserved_to_the_nano_and_fractions_with_one_for_each_line() -> None:
    whole, fraction = (
        books(price(1, "input", "0.28"), price(2, "output", "0.42")),
        books(price(1, "input", "0.0285"), price(2, "output", "0.42")),
    )
    dollars = Payer("team_a", "USD")
    assert Reserve().settled_nano(whole, whole.pins(), NOON_US, dollars, ROUTE, 3, 5) == 3 * 280 + 5 * 420
    expected = 86 + 5 * 420 + ROUNDING_NANO  # 85.5 rounded up
    assert Reserve().settled_nano(fraction, fraction.pins(), NOON_US, dollars, ROUTE, 3, 5) == expected


def test_rule_06_a_threshold_within_the_estimates_error_is_reserved_at_the_higher_tier() -> None:
    known = books(price(1, "input", "1"), price(2, "input", "2", above=100), price(3, "output", "1"))
    dollars, reserve = Payer("team_a", "USD"), Reserve()

    def of(tokens: int) -> int:
        return reserve.settled_nano(known, known.pins(), NOON_US, dollars, ROUTE, tokens, 0)

    assert of(80) == 80 * 1000 + ROUNDING_NANO  # 80 + 25 % reaches 100 and does not exceed it
    assert of(81) == 81 * 2000 + ROUNDING_NANO


def test_a_price_that_takes_effect_is_reserved_from_that_microsecond_on() -> None:
    known = books(
        price(1, "input", "1"),
        price(2, "output", "1"),
        price(3, "output", "5", version=2, since="2026-11-30T12:00:01Z"),
    )
    change, dollars, reserve = at("2026-11-30T12:00:01Z"), Payer("team_a", "USD"), Reserve()
    asked = [change - 1, change, change - 1, change + 1]
    found = [reserve.settled_nano(known, known.pins(), at_us, dollars, ROUTE, 0, 10) for at_us in asked]
    assert found == [10_000, 50_000, 10_000, 50_000]


def test_a_market_rate_that_has_become_too_old_settles_nothing() -> None:
    known = books(
        price(1, "input", "1"),
        price(2, "output", "1"),
        rate_row(1, "USD/CNY", RateKind.REFERENCE, "7", "2026-11-23T12:00:00Z"),
    )
    end_us = at("2026-11-23T12:00:00Z") + known.rates.reference_max_age_us
    assert worst_list_nano(known, known.pins(), end_us, TEAM, ROUTE, 1, 0, "CNY") == 7000 + ROUNDING_NANO
    with pytest.raises(NoRate):
        worst_list_nano(known, known.pins(), end_us + 1, TEAM, ROUTE, 1, 0, "CNY")


@pytest.mark.parametrize(
    ("named", "most", "window", "tokens", "clamped"),
    [
        (None, None, None, 4096, False),
        (None, 1000, None, 1000, False),
        (None, None, 2048, 2048, False),
        (0, 1000, None, 0, False),
        (1000, 1000, None, 1000, False),
        (1001, 1000, None, 1000, True),
        (9000, None, 8192, 8192, True),
        (100_000, None, None, 100_000, False),
        (10**9, None, None, 131_072, True),
    ],
)
def test_rule_13_the_output_cap(
    named: int | None, most: int | None, window: int | None, tokens: int, clamped: bool
) -> None:
    model = ModelSettings(
        name="m", routes=[RouteSettings(provider="p", model="m")], max_output_tokens=most, context_window=window
    )
    assert clamp(named, model, 4096) == (tokens, named is not None, clamped)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, b"0ms"),
        (1, b"1ms"),
        (250_000, b"250ms"),
        (1_000_000, b"1s"),
        (8_640_000, b"8.64s"),
        (60_000_000, b"1m0s"),
        (61_000_001, b"1m1.001s"),
        (360_000_000, b"6m0s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(us: int, text: bytes) -> None:
    assert duration(us) == text
