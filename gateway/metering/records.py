"""What the journal holds: an attempt opened, a request closed.

Records are msgpack arrays with a tag, so that a field may be appended (with a default) and old segments stay readable.
They hold no cycles, so the collector is spared them.
Times are microseconds since the epoch, UTC. `request_id` is the 16 bytes of the request's UUIDv7.
"""

from __future__ import annotations

import msgspec

from billing.books import Pins
from billing.usage import Usage


class AttemptOpened(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="o"):
    """Written before an upstream is called. `reserved` is what admission set aside for the attempt (its worst case)."""

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
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(payload: bytes | memoryview) -> Record:
    """Raises `msgspec.DecodeError` (or its `ValidationError`) for anything that is not a record."""
    record: Record = _decoder.decode(payload)
    return record
