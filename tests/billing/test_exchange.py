"""Rates: three kinds, exact quotes, inverse derived, cross quantised once, bitemporal, never a guess."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.exchange import IDENTITY, REFERENCE_MAX_AGE_US, Quote, RateBook, RateKind
from billing.money import PICO
from billing.terms import settlement_quote
from tests.billing.helpers import at, books, fixed_terms, market_terms, rate_row

FRIDAY = "2026-10-30T15:00:00Z"
POLICY, REFERENCE, CONTRACT = RateKind.POLICY, RateKind.REFERENCE, RateKind.CONTRACT


def _ratio(quote: Quote | None) -> Fraction:
    assert quote is not None
    return Fraction(quote.numerator, quote.denominator)


def test_kinds_are_never_mixed_up() -> None:
    book = RateBook([rate_row(1, "USD/CNY", POLICY, "7.3")])
    when = at("2026-02-01T00:00:00Z")
    assert _ratio(book.find(POLICY, "USD", "CNY", when, 1)) == Fraction("7.3")
    assert book.find(REFERENCE, "USD", "CNY", when, 1) is None
    assert book.find(CONTRACT, "USD", "CNY", when, 1) is None


def test_one_currency_needs_no_rate() -> None:
    assert RateBook([]).find(REFERENCE, "USD", "USD", 0, 0) is IDENTITY


@given(st.integers(min_value=10_000, max_value=8 * 10**18))
def test_an_inverse_is_derived_exactly(pico: int) -> None:
    row = rate_row(1, "USD/CNY", POLICY, "1")
    book = RateBook([type(row)(1, "USD", "CNY", POLICY, pico, "t", row.effective_from_us, 0)])
    there = book.find(POLICY, "USD", "CNY", row.effective_from_us, 1)
    back = book.find(POLICY, "CNY", "USD", row.effective_from_us, 1)
    assert _ratio(there) * _ratio(back) == 1


def test_a_cross_is_quantised_once_to_twelve_decimals_and_names_both_legs() -> None:
    book = RateBook(
        [rate_row(1, "EUR/USD", REFERENCE, "1.1604", FRIDAY), rate_row(2, "EUR/CNY", REFERENCE, "7.7200", FRIDAY)]
    )
    quote = book.find(REFERENCE, "USD", "CNY", at(FRIDAY), 2)
    exact = Fraction("7.72") / Fraction("1.1604")
    assert quote == Quote(round(exact * PICO), PICO, (1, 2))
    assert f"{float(_ratio(quote)):.4f}" == "6.6529"


def test_rule_07_a_weekend_takes_the_last_published_rate_up_to_the_stated_age() -> None:
    book = RateBook([rate_row(1, "USD/CNY", REFERENCE, "6.6529", FRIDAY)])
    assert book.find(REFERENCE, "USD", "CNY", at(FRIDAY) - 1, 1) is None
    assert book.find(REFERENCE, "USD", "CNY", at("2026-11-01T23:00:00Z"), 1) is not None
    assert book.find(REFERENCE, "USD", "CNY", at(FRIDAY) + REFERENCE_MAX_AGE_US, 1) is not None
    assert book.find(REFERENCE, "USD", "CNY", at(FRIDAY) + REFERENCE_MAX_AGE_US + 1, 1) is None


def test_a_policy_rate_does_not_age() -> None:
    book = RateBook([rate_row(1, "USD/CNY", POLICY, "7.3", "2001-01-01T00:00:00Z")])
    assert book.find(POLICY, "USD", "CNY", at("2026-11-30T00:00:00Z"), 1) is not None


def test_rule_07_a_correction_is_seen_by_later_pins_only() -> None:
    book = RateBook(
        [
            rate_row(1, "USD/CNY", POLICY, "7.3"),
            rate_row(2, "USD/CNY", POLICY, "7.1"),
            rate_row(3, "EUR/CNY", POLICY, "8"),
        ]
    )
    when = at("2026-02-01T00:00:00Z")
    assert _ratio(book.find(POLICY, "USD", "CNY", when, 1)) == Fraction("7.3")
    assert _ratio(book.find(POLICY, "USD", "CNY", when, 2)) == Fraction("7.1")
    assert book.find(POLICY, "EUR", "CNY", when, 2) is None


def test_a_cross_does_not_use_a_leg_that_the_pin_does_not_know() -> None:
    book = RateBook(
        [rate_row(1, "EUR/USD", REFERENCE, "1.16", FRIDAY), rate_row(2, "EUR/CNY", REFERENCE, "7.72", FRIDAY)]
    )
    assert book.find(REFERENCE, "USD", "CNY", at(FRIDAY), 1) is None


@pytest.mark.parametrize(("bps", "expected"), [(0, "6.6529"), (150, "6.7526935"), (-100, "6.586371")])
def test_market_terms_are_the_reference_rate_plus_basis_points(bps: int, expected: str) -> None:
    world = books(rate_row(1, "USD/CNY", REFERENCE, "6.6529", FRIDAY), market_terms(4, bps))
    quote, row = settlement_quote(
        world.terms,
        world.rates,
        team_id="team_a",
        base="USD",
        quote="CNY",
        at_us=at(FRIDAY),
        terms_version=4,
        rates_version=1,
    )
    assert _ratio(quote) == Fraction(expected)
    assert quote is not None
    assert quote.rate_ids == (1,)
    assert row is not None
    assert row.id == 4


def test_terms_bind_the_team_they_name_from_their_date_as_the_pin_knew_them() -> None:
    world = books(fixed_terms(1, "1"), fixed_terms(2, "2"))

    def settled(team: str, when: str, version: int) -> Quote | None:
        return settlement_quote(
            world.terms,
            world.rates,
            team_id=team,
            base="USD",
            quote="CNY",
            at_us=at(when),
            terms_version=version,
            rates_version=0,
        )[0]

    assert _ratio(settled("team_a", "2026-02-01T00:00:00Z", 1)) == 1
    assert _ratio(settled("team_a", "2026-02-01T00:00:00Z", 2)) == 2
    assert settled("team_b", "2026-02-01T00:00:00Z", 2) is None
    assert settled("team_a", "2025-12-31T00:00:00Z", 2) is None
