"""From journal records to a rated usage row: the one place that decides what is charged and what an attempt cost.

The door uses it for the cost it shows to the caller and the recorder for the row, so the two cannot differ: both rate at
the time of the request's id, with the pins of the first opened record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from billing.books import Books
from billing.ledger import AttemptRecord, UsageRecord
from billing.rating import AttemptUsage, Payer, Rated, RatedAttempt, rate
from billing.usage import Usage
from gateway.ids import uuid_of
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed

LOST: Final = "lost"
ID_BYTES: Final = 16
_NOTHING: Final = Usage()

Payable: TypeAlias = tuple[int, Usage]
"""Which of the attempts the team pays for, and the usage that it pays."""


def rate_request(books: Books, opened: Sequence[AttemptOpened], closed: RequestClosed | None) -> Rated:
    """The rated request; `closed` is None for one whose process died. Raises `BillingError` (no terms, overflow)."""
    outcomes = _outcomes(opened, closed)
    return _rate(books, opened, outcomes, _charged(opened, outcomes, closed))


def usage_record(books: Books, opened: Sequence[AttemptOpened], closed: RequestClosed | None) -> UsageRecord:
    """The row of one request. Raises `BillingError` where it cannot be rated at all."""
    first = opened[0]
    if len(first.request_id) != ID_BYTES:
        raise ValueError(f"a request id has {ID_BYTES} bytes, not {len(first.request_id)}")
    outcomes = _outcomes(opened, closed)
    charged = _charged(opened, outcomes, closed)
    rated = _rate(books, opened, outcomes, charged)
    serving = opened[-1 if charged is None else charged[0]]
    return UsageRecord(
        id=uuid_of(int.from_bytes(first.request_id, "big")),
        team_id=first.team_id,
        key_id=first.key_id,
        model=first.model,
        provider=serving.provider,
        provider_model=serving.provider_model,
        surface=first.surface,
        status=LOST if closed is None else closed.status,
        estimated=closed is None or closed.estimated,
        streamed=first.streamed,
        usage=_NOTHING if charged is None else charged[1],
        rated=rated,
        attempts=tuple(map(_attempt, opened, outcomes, rated.attempts)),
        tags=first.tags,
        latency_us=0 if closed is None else closed.latency_us,
        ttft_us=None if closed is None else closed.ttft_us,
        error="the gateway died before the outcome was known" if closed is None else closed.error,
        pins=first.pins,
        settlement_currency=first.settlement_currency,
    )


def _rate(
    books: Books, opened: Sequence[AttemptOpened], outcomes: Sequence[AttemptOutcome], payable: Payable | None
) -> Rated:
    first = opened[0]
    attempts = list(map(_usage, opened, outcomes, [outcome.usage or _NOTHING for outcome in outcomes]))
    charged = None
    if payable is not None:
        at, usage = payable
        # The same object where the whole of an attempt is charged: then it is priced once.
        charged = attempts[at] if attempts[at].usage is usage else _usage(opened[at], outcomes[at], usage)
    return rate(
        books,
        first.pins,
        at_us=int.from_bytes(first.request_id[:6], "big") * 1000,
        payer=Payer(first.team_id, first.settlement_currency),
        charged=charged,
        attempts=attempts,
    )


def _outcomes(opened: Sequence[AttemptOpened], closed: RequestClosed | None) -> list[AttemptOutcome]:
    """One outcome per opened attempt; an attempt without one is lost, and its cost estimate is its reservation."""
    if (
        closed is not None
        and len(opened) == len(closed.attempts) == 1
        and opened[0].sequence == closed.attempts[0].sequence
    ):
        return list(closed.attempts)
    known = {} if closed is None else {outcome.sequence: outcome for outcome in closed.attempts}
    return [
        known.get(attempt.sequence)
        or AttemptOutcome(
            sequence=attempt.sequence,
            status=LOST,
            usage=attempt.reserved,
            latency_us=0,
            service_tier=attempt.service_tier,
            processing=attempt.processing,
            estimated=True,
        )
        for attempt in opened
    ]


def _charged(
    opened: Sequence[AttemptOpened], outcomes: Sequence[AttemptOutcome], closed: RequestClosed | None
) -> Payable | None:
    """What the team pays for; None when it pays nothing."""
    if closed is None:
        usage = _lost_usage(opened[-1])
        return None if usage is None else (len(opened) - 1, usage)
    for at, attempt in enumerate(opened):
        if attempt.sequence == closed.answered:
            return at, outcomes[at].usage or _NOTHING
    return None


def _lost_usage(attempt: AttemptOpened) -> Usage | None:
    """What a team pays for an attempt whose outcome nobody knows: the team's `lost_charge`."""
    if attempt.lost_charge == "none":
        return None
    if attempt.lost_charge == "reservation":
        return attempt.reserved
    reserved = attempt.reserved
    return Usage(
        input=reserved.input,
        cache_read=reserved.cache_read,
        cache_write_5m=reserved.cache_write_5m,
        cache_write_1h=reserved.cache_write_1h,
        audio_input=reserved.audio_input,
        image_input=reserved.image_input,
        request=reserved.request,
    )


def _usage(attempt: AttemptOpened, outcome: AttemptOutcome, usage: Usage) -> AttemptUsage:
    return AttemptUsage(
        outcome.sequence,
        attempt.price_list,
        attempt.provider_model,
        attempt.provider,
        usage,
        outcome.service_tier,
        outcome.processing,
        attempt.cost_per_hour,
    )


def _attempt(attempt: AttemptOpened, outcome: AttemptOutcome, rated: RatedAttempt) -> AttemptRecord:
    return AttemptRecord(
        sequence=attempt.sequence,
        provider=attempt.provider,
        provider_model=attempt.provider_model,
        status=outcome.status,
        usage=outcome.usage,
        cost=rated.cost,
        price_row_ids=rated.price_row_ids,
        error=outcome.error,
        started_at_us=attempt.at_us,
        latency_us=outcome.latency_us,
        ttft_us=outcome.ttft_us,
        service_tier=outcome.service_tier,
        processing=outcome.processing,
        cost_per_hour=rated.cost_per_hour,
    )
