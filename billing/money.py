"""Money: a currency and an integer count of nano units (1e-9), and the one rounding there is.

Prices are integers in micro units per million tokens (at most six decimals), rates are integers in pico (1e-12, at most
twelve decimals), amounts are integers in nano. All three are Python ints, so every product is exact; `divide_half_even` is
the only place where anything rounds, and each amount passes through it once.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from billing.currencies import minor_digits
from billing.errors import InvalidAmount, MixedCurrencies

NANO: Final = 1_000_000_000
MICRO: Final = 1_000_000
PICO: Final = 1_000_000_000_000
INT64_MAX: Final = 2**63 - 1
BEYOND: Final = "beyond 9223372036.854775807, the most that an amount can be in any currency (64 bits of billionths)"


def divide_half_even(numerator: int, denominator: int) -> int:
    """The integer nearest to numerator / denominator, a tie going to the even one.

    `denominator` must be positive. Exact for integers of any size.
    """
    assert denominator > 0
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient & 1):
        quotient += 1
    return quotient


def parse_scaled(text: str, scale: int, what: str) -> int:
    """The decimal string `text` as an integer count of 1/scale units, exactly.

    Raises `InvalidAmount` when it is no plain decimal, has more decimals than the scale holds, or leaves 64 bits.
    """
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise InvalidAmount(f"{what}: {text!r} is not a decimal number") from error
    if not value.is_finite():
        raise InvalidAmount(f"{what}: {text!r} is not a finite number")
    if abs(value.adjusted()) > 40:
        raise InvalidAmount(f"{what}: {text!r} is {_beyond(scale)}")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    count = int("".join(map(str, digits))) * (-1 if sign else 1)
    if exponent >= 0:
        scaled, remainder = count * int(10**exponent) * scale, 0
    else:
        scaled, remainder = divmod(count * scale, int(10**-exponent))
    if remainder:
        raise InvalidAmount(f"{what}: {text!r} has more than {len(str(scale)) - 1} decimals")
    if abs(scaled) > INT64_MAX:
        raise InvalidAmount(f"{what}: {text!r} is {_beyond(scale)}")
    return scaled


def _beyond(scale: int) -> str:
    return BEYOND if scale == NANO else f"beyond {format_scaled(INT64_MAX, scale)}, the most that is counted here"


def format_scaled(count: int, scale: int) -> str:
    """`count` 1/scale units (a power of ten) as a plain decimal string without trailing zeros: 420000000 nano is "0.42"."""
    sign = "-" if count < 0 else ""
    whole, fraction = divmod(abs(count), scale)
    if fraction == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{str(scale + fraction)[1:].rstrip('0')}"


class Money(msgspec.Struct, frozen=True, gc=False):
    """`nano` billionths of one unit of `currency` (ISO 4217). Compares and adds within one currency only."""

    currency: str
    nano: int

    @classmethod
    def parse(cls, amount: str, currency: str) -> Money:
        """`Money.parse("0.42", "USD")`. Raises `InvalidAmount` beyond nine decimals or 64 bits."""
        return cls(currency, parse_scaled(amount, NANO, "amount"))

    @property
    def amount(self) -> str:
        """The exact decimal string, unrounded: "3.066"."""
        return format_scaled(self.nano, NANO)

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"

    def __add__(self, other: Money) -> Money:
        self._same(other)
        return Money(self.currency, self.nano + other.nano)

    def __sub__(self, other: Money) -> Money:
        self._same(other)
        return Money(self.currency, self.nano - other.nano)

    def __neg__(self) -> Money:
        return Money(self.currency, -self.nano)

    def __lt__(self, other: Money) -> bool:
        self._same(other)
        return self.nano < other.nano

    def __le__(self, other: Money) -> bool:
        self._same(other)
        return self.nano <= other.nano

    def rounded(self) -> Money:
        """To the currency's minor unit, half-even: what a statement's line shows."""
        step = NANO // 10 ** minor_digits(self.currency)
        return Money(self.currency, divide_half_even(self.nano, step) * step)

    def _same(self, other: Money) -> None:
        if self.currency != other.currency:
            raise MixedCurrencies(f"{self.currency} and {other.currency} cannot be combined without a rate")
