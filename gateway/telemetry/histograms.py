"""OpenTelemetry's GenAI metrics of recorded requests, as delta histograms: each export tells what came since the last.

Names, units and bucket bounds: the semantic conventions for generative AI metrics, 1.41.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from billing.records import UsageRecord
from gateway.telemetry.otlp import DELTA, Json, Value, attributes
from gateway.telemetry.spans import OPERATIONS

_TOKEN_BOUNDS: Final = tuple(4**power for power in range(14))
_SECOND_BOUNDS: Final = tuple(0.01 * 2**power for power in range(14))
_FIRST_TOKEN_BOUNDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip

_INSTRUMENTS: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "gen_ai.client.token.usage": ("{token}", _TOKEN_BOUNDS),
    "gen_ai.client.operation.duration": ("s", _SECOND_BOUNDS),
    "gen_ai.server.request.duration": ("s", _SECOND_BOUNDS),
    "gen_ai.server.time_to_first_token": ("s", _FIRST_TOKEN_BOUNDS),
}

_Point = tuple[tuple[str, Value | None], ...]


class Histograms:
    """What has been observed since `take`: at most `MOST_POINTS` combinations of attributes, all from the configuration."""

    MOST_POINTS: Final = 4096

    def __init__(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        self._points: dict[tuple[str, _Point], tuple[list[int], list[float]]] = {}

    def observe(self, row: UsageRecord) -> None:
        operation = OPERATIONS.get(row.surface, row.surface)
        error = None if row.status in ("completed", "cancelled") else row.status
        here: dict[str, Value | None] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": row.provider,
            "gen_ai.request.model": row.model,
            "gen_ai.response.model": row.provider_model,
        }
        for kind, count in (("input", row.usage.total_input), ("output", row.usage.total_output)):
            if count:
                self._add("gen_ai.client.token.usage", {**here, "gen_ai.token.type": kind}, count)
        self._add("gen_ai.server.request.duration", {**here, "error.type": error}, row.latency_us / 1e6)
        if row.ttft_us is not None:
            self._add("gen_ai.server.time_to_first_token", here, row.ttft_us / 1e6)
        for attempt in row.attempts:
            there: dict[str, Value | None] = {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": attempt.provider,
                "gen_ai.request.model": attempt.provider_model,
                "error.type": None if attempt.status in ("completed", "cancelled") else attempt.status,
            }
            self._add("gen_ai.client.operation.duration", there, attempt.latency_us / 1e6)

    def _add(self, name: str, where: dict[str, Value | None], value: float) -> None:
        key = name, tuple(where.items())
        point = self._points.get(key)
        bounds = _INSTRUMENTS[name][1]
        if point is None:
            if len(self._points) >= self.MOST_POINTS:
                return
            point = self._points[key] = [0] * (len(bounds) + 1), [0.0]
        point[0][bisect_left(bounds, value)] += 1
        point[1][0] += value

    def take(self, now_ns: int) -> list[Json]:
        """The metrics since the last call, and a new beginning."""
        begun_ns, self._begun_ns = self._begun_ns, now_ns
        points, self._points = self._points, {}
        return [
            {
                "name": name,
                "unit": unit,
                "histogram": {
                    "aggregationTemporality": DELTA,
                    "dataPoints": list(_data_points(points.items(), name, bounds, begun_ns, now_ns)),
                },
            }
            for name, (unit, bounds) in _INSTRUMENTS.items()
            if any(of == name for of, _ in points)
        ]


def _data_points(
    points: Iterable[tuple[tuple[str, _Point], tuple[list[int], list[float]]]],
    name: str,
    bounds: tuple[float, ...],
    begun_ns: int,
    now_ns: int,
) -> Iterable[Json]:
    for (of, where), (counts, total) in points:
        if of == name:
            yield {
                "attributes": attributes(dict(where)),
                "startTimeUnixNano": str(begun_ns),
                "timeUnixNano": str(now_ns),
                "count": str(sum(counts)),
                "sum": total[0],
                "bucketCounts": [str(count) for count in counts],
                "explicitBounds": list(bounds),
            }
