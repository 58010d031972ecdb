"""The figures of several processes as those of one: what each has counted since it last said so, added up by whoever is asked.

Counters and histograms are added and stay when their process ends, so a sum never steps back. Gauges are each process's present
state: they are added, too, unless `WORST` names the one value that speaks for all, and leave with their process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct
from prometheus_client.metrics_core import Metric

Labels: TypeAlias = tuple[tuple[str, str], ...]

WORST: Final[dict[str, Callable[[float, float], float]]] = {
    "metergate_journal_writable": min,
    "metergate_limit_store_up": min,
    "metergate_journal_unshipped_seconds": max,
    "metergate_catalog_stale_seconds": max,
    "metergate_drift": max,
    "metergate_price_drift": max,
    "metergate_audit_chain_broken": max,
    "metergate_wallets_low": max,
    "metergate_webhooks_pending": max,
    "metergate_route_circuit": max,
    "metergate_route_first_content_seconds": max,
    "metergate_rate_feed_age_seconds": max,
    "metergate_journal_room_bytes": min,
    "metergate_start_time_seconds": max,
    "metergate_build_info": max,
}


class Sample(Struct, frozen=True, array_like=True):
    """One value of the family `family`. `name` is the exposition's, with its suffix."""

    family: str
    name: str
    labels: Labels
    value: float


class Report(Struct, frozen=True, array_like=True):
    """What one process has counted since its last report, and its gauges now."""

    counted: list[Sample]
    gauges: list[Sample]


class Reporter:
    """Makes one process's reports. Without `gauges` its gauges say nothing and are left out.

    A counter that stands at 0 is reported once: one that first shows itself at 1 has no increase, and no alert would see it.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]], *, gauges: bool) -> None:
        self._families = families
        self._gauges = gauges
        self._reported: dict[tuple[str, Labels], float] = {}

    def take(self) -> Report:
        counted: list[Sample] = []
        gauges: list[Sample] = []
        for family in self._families():
            for sample in family.samples:
                labels = tuple(sample.labels.items())
                if family.type == "gauge":
                    if self._gauges:
                        gauges.append(Sample(family.name, sample.name, labels, sample.value))
                    continue
                before = self._reported.get((sample.name, labels))
                if sample.value != before:
                    self._reported[sample.name, labels] = sample.value
                    counted.append(Sample(family.name, sample.name, labels, sample.value - (before or 0.0)))
        return Report(counted, gauges)


class MetricsSum:
    """Reports of other processes, added up. `source` names the process that a report is from."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counted: dict[str, dict[tuple[str, Labels], float]] = {}
        self._gauges: dict[str, list[Sample]] = {}

    def add(self, source: str, report: Report) -> None:
        with self._guard:
            for sample in report.counted:
                values = self._counted.setdefault(sample.family, {})
                key = (sample.name, sample.labels)
                values[key] = values.get(key, 0.0) + sample.value
            self._gauges[source] = report.gauges

    def leave(self, source: str) -> None:
        """The process is gone: what it counted stays, what it is does not."""
        with self._guard:
            self._gauges.pop(source, None)

    def total(self) -> Report:
        """Everything as one report."""
        with self._guard:
            counted = [
                Sample(family, name, labels, value)
                for family, values in self._counted.items()
                for (name, labels), value in values.items()
            ]
            return Report(counted, [sample for gauges in self._gauges.values() for sample in gauges])

    def over(self, families: Iterable[Metric]) -> Iterator[Metric]:
        """`families`, this process's own, with everything reported put on top."""
        reported: dict[str, list[Sample]] = {}
        total = self.total()
        for sample in (*total.counted, *total.gauges):
            reported.setdefault(sample.family, []).append(sample)
        for family in families:
            yield _merged(family, reported.get(family.name, ()))


def _merged(own: Metric, reported: Iterable[Sample]) -> Metric:
    join = WORST.get(own.name, float.__add__)
    values = {(sample.name, tuple(sample.labels.items())): float(sample.value) for sample in own.samples}
    for sample in reported:
        key = (sample.name, sample.labels)
        before = values.get(key)
        values[key] = sample.value if before is None else join(before, sample.value)
    merged = Metric(own.name, own.documentation, own.type)
    for (name, labels), value in values.items():
        merged.add_sample(name, dict(labels), value)
    return merged
