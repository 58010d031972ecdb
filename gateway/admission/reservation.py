"""How much a request may cost at most, before it has cost anything.

The input estimate is priced at the dearest input class (a cache write can cost more than plain input), the output at its
reserved cap. With the input counted exactly, nothing settles above its reservation: each line is rounded to a nano on its
own, so where a token's price is no whole number of nano, one nano per line is added. With an estimate, what exceeds it (and only
that) can exceed the reservation; `gateway/tokens.py` errs upward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from billing.books import Books, Pins
from billing.errors import NoPrice, NoRate
from billing.exchange import Quote, RateKind
from billing.money import MICRO, divide_half_even
from billing.prices import UNIT_SIZE
from billing.rating import ESTIMATE_ERROR_PERCENT, NANO_PER_MICRO, Payer, Rated, check_bounded, sold_to, worst_case
from billing.usage import INPUT_CLASSES, OUTPUT_CLASSES, TokenClass

if TYPE_CHECKING:
    from gateway.settings import ModelSettings

UNKNOWN_MAXIMUM: Final = 131_072
"""Output tokens at most of a model whose maximum is not configured: what an absurd `max_tokens` is clamped to."""
ROUNDING_NANO: Final = len(TokenClass)
_PROBE: Final = 10**15


class PricedRoute(Protocol):
    """What admission needs to know of a candidate route."""

    @property
    def price_list(self) -> str: ...

    @property
    def model(self) -> str: ...


class OutputCap(NamedTuple):
    """`tokens` per choice is what is reserved. `clamped`: the caller named more than the model can give."""

    tokens: int
    named: bool
    clamped: bool


def clamp(named: int | None, model: ModelSettings | None, default_reserve: int) -> OutputCap:
    """min(max_tokens, model maximum); where the caller named none, min(configured default, model maximum)."""
    known = None if model is None else (model.max_output_tokens or model.context_window)
    most = known or UNKNOWN_MAXIMUM
    if named is None:
        return OutputCap(min(default_reserve, most), False, False)
    return OutputCap(min(named, most), True, named > most)


class _Line(NamedTuple):
    """A worst case that is a straight line: so much per input token, per output token and per request, in whole nano."""

    input_nano: int
    output_nano: int
    request_nano: int


class Reserve:
    """Worst cases under one snapshot of the books.

    Almost every route's worst case is a straight line (no input tiers, a whole number of nano per token). Such lines are kept
    for as long as no price, rate or term begins or ends; the rest is asked of the books each time.
    """

    def __init__(self) -> None:
        self._books: Books | None = None
        self._changes: list[int] = []
        self._from_us = self._until_us = 0
        self._lines: dict[tuple[str, str, str, str], _Line | None] = {}

    def settled_nano(
        self,
        books: Books,
        pins: Pins,
        at_us: int,
        payer: Payer,
        route: PricedRoute,
        input_tokens: int,
        output_tokens: int,
    ) -> int:
        """The most that this route can settle at, in the payer's currency. Raises `NoPrice`, `NoTerms` or `NoRate`."""
        if books is not self._books or not self._from_us <= at_us < self._until_us:
            self._turn_to(books, at_us)
        key = (payer.team_id, payer.currency, route.price_list, route.model)
        line = self._lines.get(key)
        if line is not None:
            return line.input_nano * input_tokens + line.output_nano * output_tokens + line.request_nano

        def cost(input_tokens: int, output_tokens: int) -> int:
            return worst_case(
                books,
                pins,
                at_us=at_us,
                payer=payer,
                price_list=route.price_list,
                model=route.model,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            ).nano

        if key not in self._lines:
            self._lines[key] = _line_through(cost)
            return self.settled_nano(books, pins, at_us, payer, route, input_tokens, output_tokens)
        worst = cost(input_tokens, output_tokens)
        return worst + ROUNDING_NANO if worst else 0

    def _turn_to(self, books: Books, at_us: int) -> None:
        """Begin anew for the time around `at_us` in which nothing in `books` changes."""
        if books is not self._books:
            self._books = books
            changes = {row.effective_from_us for row in books.prices.rows}
            changes |= {row.effective_from_us for row in books.terms.rows}
            changes |= {row.effective_from_us for row in books.rates.rows}
            changes |= {row.effective_from_us for row in books.sell.rows}
            age_us = books.rates.reference_max_age_us  # a reference rate ends when it is too old
            for row in books.rates.rows:
                changes.update((row.effective_from_us + age_us, row.effective_from_us + age_us + 1))
            self._changes = sorted(changes)
        place = bisect_right(self._changes, at_us)
        self._from_us = self._changes[place - 1] if place else 0
        self._until_us = self._changes[place] if place < len(self._changes) else 1 << 62
        self._lines.clear()


def _line_through(cost: Callable[[int, int], int]) -> _Line | None:
    """The line of a worst case; None where it bends (input tiers), or a token costs a fraction of a nano."""
    fee = cost(0, 0)
    line = _Line(cost(1, 0) - fee, cost(0, 1) - fee, fee)
    for inputs, outputs in ((_PROBE, 0), (0, _PROBE), (_PROBE, _PROBE)):
        if cost(inputs, outputs) != line.input_nano * inputs + line.output_nano * outputs + fee:
            return None
    return line


def worst_list_nano(
    books: Books,
    pins: Pins,
    at_us: int,
    payer: Payer,
    route: PricedRoute,
    input_tokens: int,
    output_tokens: int,
    currency: str,
) -> int:
    """The most that this route can list at, at the payer's sell price, in `currency` at the reference rate: what budgets over
    everything count.

    Raises `NoPrice`, or `NoRate` where no reference rate leads to `currency`.
    """
    reach = input_tokens * (100 + ESTIMATE_ERROR_PERCENT) // 100
    total, priced = 0, False
    sold = sold_to(books, pins, at_us, payer, route.price_list, route.model)
    for classes, quantity in (
        (INPUT_CLASSES, input_tokens),
        (OUTPUT_CLASSES, output_tokens),
        ((TokenClass.REQUEST,), 1),
    ):
        dearest = 0
        for token_class in classes:
            for row in books.prices.tiers(sold.price_list, route.model, token_class, at_us=at_us, version=pins.book):
                priced = True
                if row.min_input_tokens >= reach and row.min_input_tokens:
                    continue
                if (row.unit == "mtok") == (token_class is TokenClass.REQUEST) or row.unit == "hour":
                    check_bounded(row, route.model)
                    continue
                quote = _reference(books, pins, at_us, row.currency, currency)
                numerator = quantity * row.amount_micro * NANO_PER_MICRO * sold.multiplier_micro * quote.numerator
                dearest = max(dearest, -(-numerator // (UNIT_SIZE[row.unit] * MICRO * quote.denominator)))
        total += dearest
    if not priced:
        raise NoPrice(f"no price for {route.model} on price list {route.price_list}")
    return total + (ROUNDING_NANO if total else 0)


def listed_nano(books: Books, pins: Pins, at_us: int, rated: Rated, currency: str) -> int | None:
    """What a rated request counts in a budget over everything: list as it stands, at the row's own reference rate where
    that is in `currency`, else at the reference rate of the pinned books. None where it has no list amount."""
    listed = rated.list
    if listed is None:
        return None
    if listed.nano == 0:
        return 0
    if listed.currency == currency:
        return listed.nano
    if rated.reference is not None and rated.reference.currency == currency and rated.reference.nano:
        return rated.reference.nano
    quote = _reference(books, pins, at_us, listed.currency, currency)
    return divide_half_even(listed.nano * quote.numerator, quote.denominator)


def _reference(books: Books, pins: Pins, at_us: int, base: str, currency: str) -> Quote:
    quote = books.rates.find(RateKind.REFERENCE, base, currency, at_us, pins.rates)
    if quote is None:
        raise NoRate(f"no reference rate leads from {base} to {currency}")
    return quote
