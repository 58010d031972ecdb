"""How much a request may cost at most, before it has cost anything.

The input estimate is priced at the dearest input class (a cache write can cost more than plain input), the output at its
reserved cap. With the input counted exactly, nothing settles above its reservation: each line is rounded to a nano on its
own, so where a token's price is no whole number of nano, one nano per line is added. With an estimate, what exceeds it (and only
that) can exceed the reservation; `gateway/tokens.py` errs upward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from billing.books import Books, Pins
from billing.errors import NoPrice, NoRate
from billing.exchange import Quote, RateKind
from billing.money import divide_half_even
from billing.prices import UNIT_SIZE
from billing.rating import ESTIMATE_ERROR_PERCENT, NANO_PER_MICRO, Payer, Rated, worst_case
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


@dataclass(frozen=True, slots=True)
class OutputCap:
    """`tokens` per choice is what is reserved. `clamped`: the caller named more than the model can give."""

    tokens: int
    named: bool
    clamped: bool


def output_cap(named: int | None, model: ModelSettings | None, default_reserve: int) -> OutputCap:
    """min(max_tokens, model maximum); where the caller named none, min(configured default, model maximum)."""
    known = None if model is None else (model.max_output_tokens or model.context_window)
    most = known or UNKNOWN_MAXIMUM
    if named is None:
        return OutputCap(min(default_reserve, most), False, False)
    return OutputCap(min(named, most), True, named > most)


class Reserve:
    """Worst cases under one snapshot of the books. `exact` answers are kept until the books change or a minute passes."""

    def __init__(self) -> None:
        self._books: Books | None = None
        self._minute = 0
        self._exact: dict[tuple[str, str, str, str], bool] = {}

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
        worst = worst_case(
            books,
            pins,
            at_us=at_us,
            payer=payer,
            price_list=route.price_list,
            model=route.model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        ).nano
        if worst and not self._is_exact(books, pins, at_us, payer, route):
            worst += ROUNDING_NANO
        return worst

    def _is_exact(self, books: Books, pins: Pins, at_us: int, payer: Payer, route: PricedRoute) -> bool:
        """Whether a token's settled price is a whole number of nano in every class, so that no line is ever rounded."""
        minute = at_us // 60_000_000
        if self._books is not books or self._minute != minute:
            self._books, self._minute = books, minute
            self._exact.clear()
        key = (payer.team_id, payer.currency, route.price_list, route.model)
        known = self._exact.get(key)
        if known is None:

            def cost(input_tokens: int, output_tokens: int) -> int:
                return worst_case(
                    books, pins, at_us=at_us, payer=payer, price_list=route.price_list, model=route.model,
                    input_tokens=input_tokens, output_tokens=output_tokens,
                ).nano  # fmt: skip

            fee = cost(0, 0)
            known = all(
                cost(*(_PROBE * n for n in one)) - fee == _PROBE * (cost(*one) - fee) for one in ((1, 0), (0, 1))
            )
            self._exact[key] = known
        return known


def worst_list_nano(
    books: Books, pins: Pins, at_us: int, route: PricedRoute, input_tokens: int, output_tokens: int, currency: str
) -> int:
    """The most that this route can list at, in `currency` at the reference rate: what budgets over everything count.

    Raises `NoPrice`, or `NoRate` where no reference rate leads to `currency`.
    """
    reach = input_tokens * (100 + ESTIMATE_ERROR_PERCENT) // 100
    total, priced = 0, False
    for classes, quantity in (
        (INPUT_CLASSES, input_tokens),
        (OUTPUT_CLASSES, output_tokens),
        ((TokenClass.REQUEST,), 1),
    ):
        dearest = 0
        for token_class in classes:
            for row in books.prices.tiers(route.price_list, route.model, token_class, at_us=at_us, version=pins.book):
                priced = True
                if row.min_input_tokens >= reach and row.min_input_tokens:
                    continue
                if (row.unit == "mtok") == (token_class is TokenClass.REQUEST) or row.unit == "hour":
                    continue
                quote = _reference(books, pins, at_us, row.currency, currency)
                numerator = quantity * row.amount_micro * NANO_PER_MICRO * quote.numerator
                dearest = max(dearest, -(-numerator // (UNIT_SIZE[row.unit] * quote.denominator)))
        total += dearest
    if not priced:
        raise NoPrice(f"no price for {route.model} on price list {route.price_list}")
    return total + (ROUNDING_NANO if total else 0)


def listed_nano(books: Books, pins: Pins, at_us: int, rated: Rated, currency: str) -> int:
    """What a rated request counts in a budget over everything: list as it stands, at the row's own reference rate where
    that is in `currency`, else at the reference rate of the pinned books. Unpriced requests count nothing."""
    listed = rated.list
    if listed is None or listed.nano == 0:
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
