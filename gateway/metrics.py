"""Everything that `/metrics` says. Names, labels and meanings are listed in docs/metrics.md (a test compares the two).

Labels are bounded: surfaces, models and providers come from the configuration, and beyond `MAX_ROUTES` combinations of them
everything more is counted under `other`. No request looks a label up: it takes its `RouteMetrics` once, and every child in
there was resolved when the route was first seen. Figures here are for watching; the books are in the database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing.money import NANO
from gateway import compiled
from gateway.metrics_cells import Counts, Timings
from gateway.metrics_route import STATUSES, RouteMetrics
from gateway.metrics_sum import MetricsSum

disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped there; a time beside every counter tells nothing

MAX_ROUTES: Final = 1000
MAX_CURRENCIES: Final = 200
OTHER: Final = "other"
AMOUNTS: Final = ("list", "settled", "cost")
FAILURES: Final = ("connection", "conflict", "timeout", "rows", "journal")
RATE_FETCHES: Final = ("taken", "unchanged", "refused", "failed")
WEBHOOKS: Final = ("delivered", "failed", "given_up", "dropped")
SPANS: Final = ("exported", "dropped")
ANSWER_CACHE: Final = ("hit", "miss", "failed")
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OVERHEAD: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Metrics:
    """One registry and its instruments: thread-safe, as prometheus_client's are, but for the cells, which the door counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._requests()
        self._rows()
        self._journal()
        self._keepers()
        self._process()
        self._routes: dict[tuple[str, str, str], RouteMetrics] = {}
        self._money: dict[tuple[str, str], Counter] = {}
        self._before: list[Callable[[], None]] = []
        self.others = MetricsSum()
        """What other processes counted on this one's behalf."""

    def _requests(self) -> None:
        """What the door counts: callers, attempts and their routes."""
        route = ("surface", "model", "provider")
        self.requests = self._counts("requests", "Requests answered, by how they ended.", *route, "status")
        self.refused = self._counter("refused", "Requests refused before any attempt, by HTTP status.", "code")
        self.attempts = self._counts("attempts", "Attempts at a provider that have ended.", "provider", "status")
        self.flawed = self._counter(
            "flawed_usage",
            "Attempts whose provider reported a usage that is impossible or hard to believe.",
            "provider",
        )
        self.duration = self._timings("request_duration_seconds", "Arrival to last byte.", _SECONDS, *route)
        self.ttft = self._timings("time_to_first_token_seconds", "Arrival to first token.", _SECONDS, *route)
        self.overhead = self._timings("overhead_seconds", "The gateway's own share.", _OVERHEAD, "surface")
        self.in_flight = self._gauge("requests_in_flight", "Requests being served.")
        self.limit_store_up = self._gauge("limit_store_up", "1 while the limit store answers.")
        self.limit_store_resets = self._counter(
            "limit_store_resets", "Times the limit store was found empty or set back."
        )
        self.answer_cache = self._counter(
            "answer_cache", "Look-ups in the answer cache, by what came of them.", "result"
        )
        target = ("model", "provider", "provider_model")
        self.route_circuit = self._gauge("route_circuit", "A route's circuit: 0 closed, 1 half open, 2 open.", *target)
        self.route_in_flight = self._gauge("route_in_flight", "Attempts that run at a route.", *target)
        self.route_pace = self._gauge(
            "route_first_content_seconds", "The decayed mean time to the first content of an answer.", *target
        )

    def _rows(self) -> None:
        """What the recorder counts of rows that are in the database."""
        self.tokens = self._counter("tokens", "Tokens of recorded rows, by class.", "model", "provider", "class")
        self.money = self._counter("money", "Amounts of recorded rows, in currency units.", "amount", "currency")
        self.unpriced = self._counter("unpriced_requests", "Recorded rows without a price.", "model", "provider")
        self.overflow = self._counter("overflow_requests", "Recorded rows whose charge is beyond 64 bits.")
        self.negative_margin = self._counter(
            "negative_margin_requests", "Recorded rows that cost more than they bring.", "model", "provider"
        )
        self.estimated = self._counter("estimated_requests", "Recorded rows with estimated usage.", "model", "provider")

    def _journal(self) -> None:
        """What is on its way there."""
        self.journal_writable = self._gauge("journal_writable", "1 while new requests can be journalled.")
        self.journal_bytes = self._gauge("journal_bytes", "Disk space of this process's journal.")
        self.journal_unshipped = self._gauge("journal_unshipped_bytes", "Written here and not yet in the database.")
        self.journal_age = self._gauge("journal_unshipped_seconds", "Time since everything was in the database.")
        self.journal_room = self._gauge("journal_room_bytes", "What the journal can take before it refuses requests.")
        self.journal_open = self._gauge("journal_open_requests", "Requests journalled as opened and not yet closed.")
        self.journal_damaged = self._counter(
            "journal_damaged_bytes", "Bytes in the middle of a journal that do not check."
        )
        self.journal_shortened = self._counter(
            "journal_shortened_segments", "Shipped segments deleted before retain_hours because max_bytes was near."
        )
        self.recorder_rows = self._counter("recorder_rows", "Usage rows inserted.")
        self.recorder_duplicates = self._counter("recorder_duplicates", "Rows that were there already (a replay).")
        self.recorder_failures = self._counter("recorder_failures", "Writes that have to be tried again.", "reason")
        self.recorder_restarts = self._counter("recorder_restarts", "Recorder processes that died or hung.")
        self.dead_letters = self._counter("dead_letters", "Records set aside because they cannot become a row.")
        self.adopted = self._counter("journals_adopted", "Journals of dead processes taken over.")
        self.corrected = self._counter("lost_corrected", "Lost rows corrected by an outcome that turned up later.")
        self.failures = {reason: self.recorder_failures.labels(reason) for reason in FAILURES}

    def _keepers(self) -> None:
        """What is looked after from time to time: derived figures, prices, rates, wallets, events."""
        self.drift = self._gauge("drift", "Derived figures that differed from their rows at the last look.", "table")
        self.price_drift = self._gauge(
            "price_drift", "Prices that differ from what a source lists and nobody has acknowledged.", "source"
        )
        self.audit_chain_broken = self._gauge(
            "audit_chain_broken", "1 where the audit log is not what was written, at the last look."
        )
        self.drift_repaired = self._counter("drift_repaired", "Derived figures made again out of their rows.")
        self.catalog_stale = self._gauge(
            "catalog_stale_seconds", "Time since the catalog was last known to be current."
        )
        self.wallets_low = self._gauge("wallets_low", "Wallets below their low-balance threshold.")
        self.budget_thresholds = self._counter(
            "budget_thresholds", "Budget periods that reached a threshold.", "scope", "percent"
        )
        self.rate_fetches = self._counter(
            "rate_fetches", "Rounds of a rate feed, by what came of them.", "feed", "result"
        )
        self.rate_age = self._gauge("rate_feed_age_seconds", "Since a feed's newest rate was published.", "feed")
        self.webhooks = self._counter("webhooks", "Tries to deliver an event, by how they ended.", "result")
        for result in WEBHOOKS:
            self.webhooks.labels(result)
        self.spans = self._counter("spans", "Spans for the OTLP receiver, by what became of them.", "result")
        for result in SPANS:
            self.spans.labels(result)
        self.webhooks_pending = self._gauge("webhooks_pending", "Events that wait to be delivered.")

    def _process(self) -> None:
        self.engine_restarts = self._counter(
            "engine_restarts", "Bundled engines that ended and were started again.", "provider"
        )
        self.worker_restarts = self._counter(
            "worker_restarts", "Workers that died or hung, and were started again by their parent."
        )
        self.started = self._gauge("start_time_seconds", "When this process was started, in Unix time.")
        self.started.set(time.time())
        self.build = self._gauge(
            "build_info", "1, with the release that serves and how its code runs.", "version", "path"
        )
        self.build.labels(version("metergate"), "compiled" if compiled.is_active() else "interpreted").set(1)

    def route(self, surface: str, model: str, provider: str) -> RouteMetrics:
        """The instruments of one route. Callers that serve the same route keep the result."""
        key = (surface, model, provider)
        found = self._routes.get(key)
        if found is None:
            if len(self._routes) >= MAX_ROUTES:
                key = (surface, OTHER, OTHER)
            found = self._routes.setdefault(key, RouteMetrics(self, *key))
        return found

    def expect(self, providers: Iterable[str], engines: Iterable[str]) -> None:
        """Has the counters of these show themselves at 0: one that is born above it has no increase."""
        for engine in engines:
            self.engine_restarts.labels(engine)
        for provider in providers:
            self.flawed.labels(provider)
            for status in STATUSES:
                self.attempts.cell(provider, status)

    def paid(self, amount: str, currency: str, nano: int) -> None:
        """The recorder: `amount` is one of `AMOUNTS`."""
        key = (amount, currency)
        child = self._money.get(key)
        if child is None:
            if len(self._money) >= MAX_CURRENCIES:
                key = (amount, OTHER)
            child = self._money.setdefault(key, self.money.labels(*key))
        child.inc(max(0, nano) / NANO)

    def watch(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Has `gauge` read its value at every scrape."""
        gauge.set_function(read)

    def before_render(self, look: Callable[[], None]) -> None:
        """Has `look` bring gauges up to date at every scrape."""
        self._before.append(look)

    def collect(self) -> Iterator[Metric]:
        """Every family, with what others counted."""
        for look in self._before:
            look()
        return self.others.over(self.registry.collect())

    def render(self) -> bytes:
        """The text exposition of everything; its type is `CONTENT_TYPE`."""
        return generate_latest(self)

    def render_only(self, reported: MetricsSum) -> bytes:
        """The same of what was reported, without this process's own figures, which are among it."""
        families = [Metric(family.name, family.documentation, family.type) for family in self.registry.collect()]
        return generate_latest(_Families(list(reported.over(families))))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="metergate", registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="metergate", registry=self.registry)

    def _counts(self, name: str, text: str, *labels: str) -> Counts:
        return Counts(self.registry, f"metergate_{name}", text, *labels)

    def _timings(self, name: str, text: str, bounds_s: tuple[float, ...], *labels: str) -> Timings:
        return Timings(self.registry, f"metergate_{name}", text, bounds_s, *labels)


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
