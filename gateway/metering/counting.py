"""Committed rows in the metrics: summed first, so that an instrument is touched once a batch."""

from __future__ import annotations

from collections.abc import Sequence

from billing.records import UsageRecord
from billing.usage import TokenClass
from gateway.metering.bill import LOST
from gateway.metrics import Metrics


class _RouteSums:
    __slots__ = ("estimated", "lost", "negative_margin", "tokens", "unpriced")

    def __init__(self) -> None:
        self.lost = 0
        self.unpriced = 0
        self.estimated = 0
        self.negative_margin = 0
        self.tokens: dict[TokenClass, int] = {}


def count(metrics: Metrics, rows: Sequence[UsageRecord]) -> None:
    """Adds committed rows to the metrics."""
    routes: dict[tuple[str, str, str | None], _RouteSums] = {}
    listed: dict[str, int] = {}
    settled: dict[str, int] = {}
    cost: dict[str, int] = {}
    for row in rows:
        rated = row.rated
        key = (row.surface, row.model, row.provider)
        sums = routes.get(key)
        if sums is None:
            sums = routes[key] = _RouteSums()
        if row.status == LOST:
            sums.lost += 1
        if rated.unpriced is not None:
            sums.unpriced += 1
            if rated.overflow:
                metrics.overflow.inc()
        if row.estimated:
            sums.estimated += 1
        if rated.margin is not None and rated.margin.nano < 0:
            sums.negative_margin += 1
        tokens = sums.tokens
        for kind, quantity in row.usage.lines():
            tokens[kind] = tokens.get(kind, 0) + quantity
        if rated.list is not None:
            listed[rated.list.currency] = listed.get(rated.list.currency, 0) + rated.list.nano
        if rated.settled is not None:
            settled[rated.settled.currency] = settled.get(rated.settled.currency, 0) + rated.settled.nano
        if rated.cost is not None:
            cost[rated.cost.currency] = cost.get(rated.cost.currency, 0) + rated.cost.nano
    for (surface, model, provider), sums in routes.items():
        route = metrics.route(surface, model, provider or "none")
        route.lost(sums.lost)
        route.recorded(
            sums.tokens, unpriced=sums.unpriced, estimated=sums.estimated, negative_margin=sums.negative_margin
        )
    for name, by_currency in (("list", listed), ("settled", settled), ("cost", cost)):
        for currency, nano in by_currency.items():
            metrics.paid(name, currency, nano)
