"""What the journal holds: an attempt opened, a request closed.

Records are msgpack arrays with a tag, so that a field may be appended (with a default) and old segments stay readable.
They hold no cycles, so the collector is spared them. Encoding never fails: a request that was answered must not be lost for a
value in its record, so what msgpack refuses is tamed (and flagged, where it is a usage).
Times are microseconds since the epoch, UTC. `request_id` is the 16 bytes of the request's UUIDv7.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from billing.books import Pins
from billing.money import INT64_MAX, Money
from billing.usage import Usage


class AttemptOpened(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """Written before an upstream is called. `reserved` is what admission set aside for the attempt (its worst case).
    `cost_per_hour` is what an hour of the engine costs that is called, as its provider was configured then. `trace` is the
    `traceparent` that the caller sent."""

    request_id: bytes
    sequence: int
    at_us: int
    team_id: str
    key_id: str
    settlement_currency: str
    surface: str
    model: str
    provider: str
    price_list: str
    provider_model: str
    streamed: bool
    tags: dict[str, str]
    pins: Pins
    reserved: Usage
    lost_charge: str = "input"
    service_tier: str = "default"
    processing: str = "standard"
    cost_per_hour: Money | None = None
    trace: str = ""


class AttemptOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one attempt ended. `service_tier` and `processing` are what the provider says it served, not what was asked."""

    sequence: int
    status: str
    usage: Usage | None
    latency_us: int
    ttft_us: int | None = None
    error: str | None = None
    service_tier: str = "default"
    processing: str = "standard"
    estimated: bool = False


class RequestClosed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="c"):
    """Written before the last byte goes out. `answered` is the sequence of the attempt that the caller is charged for."""

    request_id: bytes
    at_us: int
    status: str
    answered: int | None
    estimated: bool
    attempts: tuple[AttemptOutcome, ...]
    latency_us: int
    ttft_us: int | None = None
    error: str | None = None


Record = AttemptOpened | RequestClosed

_encoder = msgspec.msgpack.Encoder()


MOST_COUNT: Final = 2**53
"""What a number that no 64 bits hold is written as; the adapters let none so large pass, this is the second line."""
TAMED: Final = "a count is beyond 64 bits"


def encode(record: Record) -> bytes:
    """Whole as it is; where a number or a text cannot be written, with that one value tamed."""
    try:
        payload = _encoder.encode(record)
    except (OverflowError, UnicodeError):
        return _encoder.encode(_tamed(msgspec.to_builtins(record, builtin_types=(bytes,))))
    return payload


def _tamed(value: Any) -> Any:
    """The same with integers within 64 bits, and texts that UTF-8 can say."""
    if isinstance(value, int):
        return value if -INT64_MAX <= value <= INT64_MAX else MOST_COUNT if value > 0 else -MOST_COUNT
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, (list, tuple)):
        return [_tamed(each) for each in value]
    if isinstance(value, dict):
        tamed = {_tamed(name): _tamed(each) for name, each in value.items()}
        if any(isinstance(each, int) and each != tamed.get(name) for name, each in value.items()):
            tamed.setdefault("flaw", TAMED)
        return tamed
    return value


decode: Final = msgspec.msgpack.Decoder(Record).decode
"""Raises `msgspec.DecodeError` (or its `ValidationError`) for anything that is not a record."""
