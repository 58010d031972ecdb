"""Money is exact, rounds once and half-even, and never mixes currencies."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.currencies import minor_digits
from billing.errors import InvalidAmount, InvalidCurrency, MixedCurrencies
from billing.money import NANO, Money, divide_half_even, format_scaled, parse_scaled


@given(st.integers(), st.integers(min_value=1))
def test_division_is_the_nearest_integer_and_a_tie_goes_to_the_even_one(numerator: int, denominator: int) -> None:
    assert divide_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_every_amount_survives_its_own_decimal_string(nano: int) -> None:
    assert parse_scaled(format_scaled(nano, NANO), NANO, "amount") == nano


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0.0000000001", "more than 9 decimals"),
        ("1e30", r"beyond 9223372036.854775807, the most that an amount can be"),
        ("1e999999999", r"beyond 9223372036.854775807"),
        ("9223372036.854775808", r"beyond 9223372036.854775807"),
        ("nan", "not a finite number"),
        ("-Infinity", "not a finite number"),
        ("", "not a decimal number"),
        ("1,5", "not a decimal number"),
    ],
)
def test_what_is_no_amount_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(InvalidAmount, match=complaint):
        Money.parse(text, "USD")


def test_currencies_never_mix() -> None:
    with pytest.raises(MixedCurrencies, match="USD and CNY"):
        Money.parse("1", "USD") + Money.parse("1", "CNY")
    assert Money.parse("1.5", "USD") + Money.parse("-0.5", "USD") == Money("USD", NANO)


@pytest.mark.parametrize(("code", "digits"), [("USD", 2), ("CNY", 2), ("JPY", 0), ("KWD", 3), ("KRW", 0)])
def test_rule_07_minor_units_are_those_of_iso_4217(code: str, digits: int) -> None:
    assert minor_digits(code) == digits


@pytest.mark.parametrize("code", ["usd", "RMB", "XYZ", "", "US", "DEM"])
def test_what_is_no_iso_currency_is_refused(code: str) -> None:
    with pytest.raises(InvalidCurrency, match="ISO 4217"):
        minor_digits(code)


def test_a_statement_line_rounds_to_the_minor_unit_half_even() -> None:
    assert Money.parse("0.125", "USD").rounded() == Money.parse("0.12", "USD")
    assert Money.parse("0.135", "USD").rounded() == Money.parse("0.14", "USD")
    assert Money.parse("2.5", "JPY").rounded() == Money.parse("2", "JPY")
    assert Money.parse("-0.0005", "KWD").rounded() == Money.parse("0", "KWD")
