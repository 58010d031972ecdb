"""OTLP's JSON form, as far as we need it. Source: opentelemetry-proto 1.x, "JSON Protobuf Encoding" of the OTLP specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]
Value: TypeAlias = str | int | bool | float

SERVER: Final = 2
CLIENT: Final = 3
ERROR: Final = 2
DELTA: Final = 1


def attributes(values: Mapping[str, Value | None]) -> list[Json]:
    """Those that are not None. 64-bit integers are strings, as JSON's numbers are not exact."""
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: Value) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def trace_payload(resource: Sequence[Json], scope: Json, spans: Sequence[Json]) -> Json:
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}]}


def metrics_payload(resource: Sequence[Json], scope: Json, metrics: Sequence[Json]) -> Json:
    return {
        "resourceMetrics": [
            {"resource": {"attributes": resource}, "scopeMetrics": [{"scope": scope, "metrics": metrics}]}
        ]
    }
