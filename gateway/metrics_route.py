"""What each request counts: the cells of its route, found once and then only added to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from billing.usage import TokenClass

if TYPE_CHECKING:
    from gateway.metrics import Metrics

STATUSES: Final = ("completed", "incomplete", "cancelled", "failed", "lost")


class Times:
    """How long something took, in microseconds, by bounds that are the histogram's in whole microseconds."""

    __slots__ = ("_bounds_us", "counts", "total_us")

    def __init__(self, bounds_us: tuple[int, ...]) -> None:
        self._bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)
        self.total_us = 0

    def add(self, us: int) -> None:
        self.counts[bisect_left(self._bounds_us, us)] += 1
        self.total_us += us


class RouteMetrics:
    """The children of one (surface, model, provider), resolved once."""

    __slots__ = (
        "_attempts", "_duration", "_estimated", "_negative_margin", "_overhead", "_requests", "_tokens", "_ttft", "_unpriced",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, surface: str, model: str, provider: str) -> None:
        self._requests = {status: metrics.requests.cell(surface, model, provider, status) for status in STATUSES}
        self._attempts = {status: metrics.attempts.cell(provider, status) for status in STATUSES}
        self._duration = metrics.duration.cell(surface, model, provider)
        self._ttft = metrics.ttft.cell(surface, model, provider)
        self._overhead = metrics.overhead.cell(surface)
        self._tokens = {kind: metrics.tokens.labels(model, provider, kind.value) for kind in TokenClass}
        self._unpriced = metrics.unpriced.labels(model, provider)
        self._estimated = metrics.estimated.labels(model, provider)
        self._negative_margin = metrics.negative_margin.labels(model, provider)

    def finished(self, status: str, *, duration_us: int, ttft_us: int | None, overhead_us: int | None) -> None:
        """The door: a caller has its answer. `overhead_us` is the gateway's own share of the time."""
        self._requests[status][0] += 1
        self._duration.add(duration_us)
        if ttft_us is not None:
            self._ttft.add(ttft_us)
        if overhead_us is not None:
            self._overhead.add(overhead_us)

    def attempted(self, status: str) -> None:
        """The door: one attempt at this provider has ended."""
        self._attempts[status][0] += 1

    def lost(self, count: int) -> None:
        """The recorder: requests of a dead process, which no door will ever report."""
        self._requests["lost"][0] += count

    def recorded(
        self, tokens: Mapping[TokenClass, int], *, unpriced: int, estimated: int, negative_margin: int
    ) -> None:
        """The recorder: new rows of this route are committed, with so many tokens of each class."""
        for kind, quantity in tokens.items():
            self._tokens[kind].inc(max(0, quantity))
        self._unpriced.inc(unpriced)
        self._estimated.inc(estimated)
        self._negative_margin.inc(negative_margin)
