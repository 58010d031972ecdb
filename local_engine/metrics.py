"""What the engine counts, for Prometheus: under our own names and under vLLM's, so that a vLLM dashboard works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .generation import Choice, Generation
from .messages import Stats

disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped there

OURS, VLLM = "metergate_engine_", "vllm:"
_SECONDS = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)

_GAUGES: tuple[tuple[str, str, str, Callable[[Stats], float]], ...] = (
    ("running_sequences", "num_requests_running", "Sequences in the current batch", lambda s: s.running),
    ("waiting_sequences", "num_requests_waiting", "Sequences waiting for pages or a place", lambda s: s.waiting),
    ("kv_cache_usage_ratio", "kv_cache_usage_perc", "Share of KV pages in use, 0..1", lambda s: _usage(s)),
    ("kv_blocks_free", "", "KV pages free", lambda s: s.free_blocks),
    ("kv_blocks", "", "KV pages in all", lambda s: s.num_blocks),
)
_COUNTERS: tuple[tuple[str, str, str, Callable[[Stats], float]], ...] = (
    ("preemptions", "num_preemptions", "Sequences whose pages were taken back", lambda s: s.preemptions),
    ("prefix_queries", "prefix_cache_queries", "Tokens looked up in the prefix cache", lambda s: s.prefix_queries),
    ("prefix_hits", "prefix_cache_hits", "Tokens found in the prefix cache", lambda s: s.prefix_hits),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of all sequences", lambda s: s.prompt_tokens),
    ("generated_tokens", "generation_tokens", "Tokens drawn", lambda s: s.generated_tokens),
    ("steps", "", "Steps computed", lambda s: s.steps),
    ("busy_seconds", "", "Wall time of all steps", lambda s: s.busy_us / 1e6),
    ("execute_seconds", "", "Wall time inside the model", lambda s: s.execute_us / 1e6),
    ("draft_tokens", "spec_decode_num_draft_tokens", "Tokens guessed ahead", lambda s: s.drafted),
    ("accepted_draft_tokens", "spec_decode_num_accepted_tokens", "Guesses that held", lambda s: s.accepted),
    ("failed_sequences", "", "Sequences that failed inside the engine", lambda s: s.failed),
)


class EngineMetrics:
    """One registry per server. The numbers of the core come from its latest frame, read at scrape time."""

    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name}
        self.registry = CollectorRegistry()
        self._ttft = _histogram("time_to_first_token_seconds", "From arrival to the first token")
        self._inter = _histogram("inter_token_latency_seconds", "Between two tokens of one sequence")
        self._duration = _histogram("e2e_request_latency_seconds", "From arrival to the end")
        started = Gauge("start_time_seconds", "When the engine was started, in Unix time", registry=None)
        started.set_to_current_time()
        self._requests = Counter("requests", "Requests ended, by status", ["status"], registry=None)
        self.registry.register(
            _Renamed(self._labels, (self._ttft, self._inter, self._duration, self._requests, started))
        )

    def follow(self, stats: Callable[[], Stats]) -> None:
        """Publishes the core's own numbers, as `stats` gives them at each scrape."""
        self.registry.register(_CoreStats(self._labels, stats))

    def observe_token(self, generation: Generation, choice: Choice, now_s: float) -> None:
        if choice.last_token_s is None:
            if generation.first_token_s is None:
                generation.first_token_s = now_s
                self._ttft.observe(now_s - generation.started_s)
        else:
            self._inter.observe(now_s - choice.last_token_s)
        choice.last_token_s = now_s

    def observe_end(self, generation: Generation, status: str) -> None:
        self._duration.observe(time.monotonic() - generation.started_s)
        self._requests.labels(status).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _CoreStats(Collector):
    def __init__(self, labels: dict[str, str], stats: Callable[[], Stats]) -> None:
        self._labels = labels
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        names, values = list(self._labels), list(self._labels.values())
        for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for ours, theirs, text, value in table:
                for name in (OURS + ours, VLLM + theirs) if theirs else (OURS + ours,):
                    family = kind(name, text, labels=names)
                    family.add_metric(values, value(stats))
                    yield family


class _Renamed(Collector):
    """The same series under both prefixes, with the model's name."""

    def __init__(self, labels: dict[str, str], sources: tuple[Collector, ...]) -> None:
        self._labels = labels
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            for metric in source.collect():
                for prefix in (OURS, VLLM):
                    renamed = Metric(prefix + metric.name, metric.documentation, metric.type)
                    renamed.samples = [self._rename(sample, prefix) for sample in metric.samples]
                    yield renamed

    def _rename(self, sample: Sample, prefix: str) -> Sample:
        return sample._replace(name=prefix + sample.name, labels={**sample.labels, **self._labels})


def _histogram(name: str, text: str) -> Histogram:
    return Histogram(name, text, buckets=_SECONDS, registry=None)


def _usage(stats: Stats) -> float:
    return 1.0 - stats.free_blocks / stats.num_blocks if stats.num_blocks else 0.0
