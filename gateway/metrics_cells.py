"""Counters and histograms of the hot path: counting is an addition to a plain cell, and a scrape makes the samples.

prometheus_client takes a lock, checks and converts for each count, six times a request. A cell is counted by one thread, and read
by any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.metrics_route import Times

US_PER_S: Final = 1_000_000

_Cell = TypeVar("_Cell")


class _Family(Collector, Generic[_Cell]):
    """A family's cells by their labels' values."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        kind: str,
        labels: tuple[str, ...],
        make: Callable[[], _Cell],
    ) -> None:
        self._labelnames = labels
        self._name, self._text, self._kind = name, text, kind
        self._make = make
        self._cells: dict[tuple[str, ...], _Cell] = {}
        registry.register(self)

    def cell(self, *labels: str) -> _Cell:
        """The cell of these values, the same each time."""
        assert len(labels) == len(self._labelnames)
        return self._cells.setdefault(labels, self._make())

    def describe(self) -> list[Metric]:
        return [Metric(self._name, self._text, self._kind)]

    def _children(self) -> Iterator[tuple[dict[str, str], _Cell]]:
        for labels, cell in list(self._cells.items()):
            yield dict(zip(self._labelnames, labels, strict=True)), cell


class Counts(_Family[list[int]]):
    """A counter: `cell(...)[0] += 1`."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, *labels: str) -> None:
        super().__init__(registry, name, text, "counter", labels, lambda: [0])

    def collect(self) -> Iterator[Metric]:
        family = Metric(self._name, self._text, self._kind)
        for labels, cell in self._children():
            family.add_sample(f"{self._name}_total", labels, float(cell[0]))
        yield family


class Timings(_Family[Times]):
    """A histogram of seconds: `cell(...).add(us)`."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, bounds_s: tuple[float, ...], *labels: str
    ) -> None:
        bounds_us = tuple(round(bound * US_PER_S) for bound in bounds_s)
        self._les = [*(repr(float(bound)) for bound in bounds_s), "+Inf"]
        super().__init__(registry, name, text, "histogram", labels, lambda: Times(bounds_us))

    def collect(self) -> Iterator[Metric]:
        family = Metric(self._name, self._text, self._kind)
        for labels, cell in self._children():
            sums = list(accumulate(cell.counts))
            for le, count in zip(self._les, sums, strict=True):
                family.add_sample(f"{self._name}_bucket", {**labels, "le": le}, float(count))
            family.add_sample(f"{self._name}_count", labels, float(sums[-1]))
            family.add_sample(f"{self._name}_sum", labels, cell.total_us / US_PER_S)
        yield family
