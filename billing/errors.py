"""What can go wrong in the counting-house.

BillingError
├── InvalidAmount         not a decimal, too many decimals, or beyond 64 bits
├── InvalidCurrency       no ISO 4217 code
├── MixedCurrencies       arithmetic over two currencies without a rate
├── InvalidUsage          a token count that cannot be
├── InvalidPrice          a price row that cannot be published (the message names the field)
├── InvalidRate           a rate row that cannot be recorded
├── InvalidTerms          settlement terms that cannot be recorded
├── NoPrice               no row of the book covers this model and class
├── NoRate                no rate leads from one currency to the other at that moment
├── NoTerms               currencies differ and no settlement terms apply
└── Conflict              the same identity with another content
"""

from __future__ import annotations


class BillingError(Exception):
    """Base of all errors of this package. The message is written for the person who has to act on it."""

    field: str | None = None

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidAmount(BillingError):
    pass


class InvalidCurrency(BillingError):
    pass


class MixedCurrencies(BillingError):
    pass


class InvalidUsage(BillingError):
    pass


class InvalidPrice(BillingError):
    pass


class InvalidRate(BillingError):
    pass


class InvalidTerms(BillingError):
    pass


class NoPrice(BillingError):
    pass


class NoRate(BillingError):
    pass


class NoTerms(BillingError):
    pass


class Conflict(BillingError):
    pass
