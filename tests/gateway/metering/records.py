"""Journal records for tests: one request on the wire of `metering`, with every field that matters nameable."""

from __future__ import annotations

import time
from uuid import UUID

from billing.books import EMPTY_PINS, Pins
from billing.usage import Usage
from gateway.ids import new_request_id
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed

RESERVED = Usage(input=100, output=500)
USED = Usage(input=90, output=10)


def opened(
    request_id: UUID | None = None,
    *,
    sequence: int = 0,
    provider: str = "deepseek",
    model: str = "deepseek-chat",
    team_id: str = "team_a",
    currency: str = "USD",
    pins: Pins = EMPTY_PINS,
    reserved: Usage = RESERVED,
    lost_charge: str = "input",
    tags: dict[str, str] | None = None,
) -> AttemptOpened:
    return AttemptOpened(
        request_id=(request_id or new_request_id()).bytes,
        sequence=sequence,
        at_us=time.time_ns() // 1000,
        team_id=team_id,
        key_id="key_a",
        settlement_currency=currency,
        surface="chat.completions",
        model=model,
        provider=provider,
        price_list=provider,
        provider_model=model,
        streamed=False,
        tags=tags or {},
        pins=pins,
        reserved=reserved,
        lost_charge=lost_charge,
    )


def outcome(
    sequence: int = 0, status: str = "completed", usage: Usage | None = USED, error: str | None = None
) -> AttemptOutcome:
    return AttemptOutcome(
        sequence=sequence, status=status, usage=usage, latency_us=2_000, ttft_us=500 if usage else None, error=error
    )


def closed(
    attempt: AttemptOpened,
    *outcomes: AttemptOutcome,
    status: str = "completed",
    answered: int | None = 0,
    error: str | None = None,
) -> RequestClosed:
    return RequestClosed(
        request_id=attempt.request_id,
        at_us=attempt.at_us + 2_000,
        status=status,
        answered=answered,
        estimated=False,
        attempts=outcomes or (outcome(),),
        latency_us=2_100,
        ttft_us=500,
        error=error,
    )
