"""What a route would cost us for one request, by the price book: for the strategy `cheapest`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from billing.exchange import RateKind
from billing.money import Money, divide_half_even
from billing.rating import AttemptUsage, Payer, rate_in_full
from billing.times import now_us
from billing.usage import Usage

if TYPE_CHECKING:
    from gateway.catalog import Snapshot
    from gateway.routing.routes import Route
    from gateway.upstream.base import Call

EXPECTED_OUTPUT: Final = 512
"""Output tokens that a request is compared by when it names no cap of its own."""
_NOBODY: Final = Payer("", "USD")


class CatalogView(Protocol):
    @property
    def ready(self) -> bool: ...
    @property
    def snapshot(self) -> Snapshot: ...


class Costs:
    """Comparable costs, in the nano of one currency, under the snapshot of the moment."""

    def __init__(self, catalog: CatalogView | None) -> None:
        self._catalog = catalog

    def of(self, routes: Sequence[Route], call: Call) -> list[int | None]:
        """One for each route; None where it has no price, or no reference rate leads to the others' currency.

        The input counts as uncached, the output by the caller's cap; an engine that is paid by the hour costs nothing more.
        """
        if self._catalog is None or not self._catalog.ready:
            return [None] * len(routes)
        snapshot, at_us = self._catalog.snapshot, now_us()
        output = EXPECTED_OUTPUT if call.output_cap is None else call.output_cap
        usage = Usage(
            input=call.input_tokens,
            output=output * (call.generated or call.choices) if call.speaks else 0,
            request=1,
        )
        found = [self._cost(snapshot, at_us, route, usage) for route in routes]
        currency = next((cost.currency for cost in found if cost is not None), "")
        return [None if cost is None else _in(snapshot, at_us, cost, currency) for cost in found]

    def _cost(self, snapshot: Snapshot, at_us: int, route: Route, usage: Usage) -> Money | None:
        attempt = AttemptUsage(1, route.price_list, route.model, route.provider_name, usage)
        rated = rate_in_full(
            snapshot.books, snapshot.pins, at_us=at_us, payer=_NOBODY, charged=None, attempts=[attempt]
        )
        return rated.attempts[0].cost


def _in(snapshot: Snapshot, at_us: int, cost: Money, currency: str) -> int | None:
    if cost.currency == currency or not cost.nano:
        return cost.nano
    quote = snapshot.books.rates.find(RateKind.REFERENCE, cost.currency, currency, at_us, snapshot.pins.rates)
    return None if quote is None else divide_half_even(cost.nano * quote.numerator, quote.denominator)
