"""What can go wrong in the counting-house.

BillingError
├── InvalidAmount         not a decimal, too many decimals, or beyond 64 bits
├── InvalidCurrency       no ISO 4217 code
├── MixedCurrencies       arithmetic over two currencies without a rate
├── InvalidUsage          a token count that cannot be
├── InvalidPrice          a price row that cannot be published (the message names the field)
├── InvalidRate           a rate row that cannot be recorded
├── InvalidTerms          settlement terms that cannot be recorded
├── InvalidBudget         a budget that cannot be set
├── InvalidTeam           a team that cannot be created or changed
├── InvalidWallet         a wallet entry or redemption code that cannot be entered
├── InvalidSell           a sell price that cannot be recorded
├── InvalidCorrection     a usage row that cannot be put right as asked
├── InvalidTime           no RFC 3339 time with an offset, or an absurd one
├── InvalidQuery          a report that cannot be asked for (range, interval, group, cursor)
├── NotFound              no such team, row or statement
├── AmountOverflow        a sum beyond 64 bits: refused, never wrapped
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


class InvalidBudget(BillingError):
    pass


class InvalidTeam(BillingError):
    pass


class InvalidWallet(BillingError):
    pass


class InvalidSell(BillingError):
    pass


class InvalidCorrection(BillingError):
    pass


class InvalidTime(BillingError):
    pass


class InvalidQuery(BillingError):
    pass


class NotFound(BillingError):
    pass


class AmountOverflow(BillingError):
    pass


class NoPrice(BillingError):
    pass


class Unbounded(NoPrice):
    """There is a price, but of something that only the answer counts (pictures, seconds): no worst case can be named before."""


class NoRate(BillingError):
    pass


class NoTerms(BillingError):
    pass


class Conflict(BillingError):
    pass
