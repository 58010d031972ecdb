"""Where telemetry goes: what the gateway tells its recorder."""

from __future__ import annotations

from msgspec import Struct


class Target(Struct, frozen=True):
    """`endpoint` is the receiver's base URL, as OTEL_EXPORTER_OTLP_ENDPOINT has it; `share` of the requests is sent."""

    endpoint: str
    headers: dict[str, str]
    service: str
    share: float
