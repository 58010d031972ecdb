"""A recorded request as spans: one for the request, one for each attempt below it, named as OpenTelemetry's GenAI conventions do.

What was asked and answered is never in them: the recorder does not know it.
"""

from __future__ import annotations

from typing import Final

from billing.money import Money
from billing.records import AttemptRecord, UsageRecord
from billing.usage import Usage
from gateway.ids import time_us_of
from gateway.telemetry.context import REQUEST, Parent, span_id, trace_id
from gateway.telemetry.otlp import CLIENT, ERROR, SERVER, Json, Value, attributes

OPERATIONS: Final = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
"""`gen_ai.operation.name` of a surface; a surface without one of its own is named as it is."""

_ENDED_WELL: Final = ("completed", "cancelled")


def request_spans(row: UsageRecord, parent: Parent | None) -> list[Json]:
    """The request's span, then its attempts' in order."""
    identifier = row.id.bytes
    begun_us = time_us_of(row.id)
    operation = OPERATIONS.get(row.surface, row.surface)
    rated = row.rated
    own = _span(
        identifier,
        REQUEST,
        parent,
        f"{operation} {row.model}",
        SERVER,
        begun_us,
        row.latency_us,
        row.status,
        row.error,
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": row.provider,
            "gen_ai.request.model": row.model,
            "gen_ai.response.model": row.provider_model,
            **_tokens(row.usage),
            "metergate.request.id": str(row.id),
            "metergate.team.id": row.team_id,
            "metergate.key.id": row.key_id,
            "metergate.surface": row.surface,
            "metergate.streamed": row.streamed,
            "metergate.attempts": len(row.attempts),
            "metergate.estimated": row.estimated,
            "metergate.unpriced": rated.unpriced,
            "metergate.time_to_first_token": None if row.ttft_us is None else row.ttft_us / 1e6,
            **_money("list", rated.list),
            **_money("settled", rated.settled),
            **_money("cost", rated.cost),
        },
    )
    return [own, *(_attempt_span(row, operation, attempt, parent) for attempt in row.attempts)]


def _attempt_span(row: UsageRecord, operation: str, attempt: AttemptRecord, parent: Parent | None) -> Json:
    identifier = row.id.bytes
    return _span(
        identifier,
        attempt.sequence,
        Parent(trace_id(identifier, parent), span_id(identifier, REQUEST), True),
        f"{operation} {attempt.provider_model}",
        CLIENT,
        attempt.started_at_us,
        attempt.latency_us,
        attempt.status,
        attempt.error,
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": attempt.provider,
            "gen_ai.request.model": attempt.provider_model,
            **({} if attempt.usage is None else _tokens(attempt.usage)),
            "metergate.attempt": attempt.sequence,
            "metergate.time_to_first_token": None if attempt.ttft_us is None else attempt.ttft_us / 1e6,
            **_money("cost", attempt.cost),
        },
    )


def _span(
    identifier: bytes,
    number: int,
    parent: Parent | None,
    name: str,
    kind: int,
    begun_us: int,
    lasted_us: int,
    status: str,
    error: str | None,
    values: dict[str, Value | None],
) -> Json:
    failed = status not in _ENDED_WELL
    span: Json = {
        "traceId": trace_id(identifier, parent),
        "spanId": span_id(identifier, number),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(begun_us * 1000),
        "endTimeUnixNano": str((begun_us + lasted_us) * 1000),
        "attributes": attributes({**values, "metergate.status": status, "error.type": status if failed else None}),
        "status": {"code": ERROR, "message": error or status} if failed else {},
    }
    if parent is not None:
        span["parentSpanId"] = parent.span_id
    return span


def _tokens(usage: Usage) -> dict[str, Value | None]:
    return {
        "gen_ai.usage.input_tokens": usage.total_input,
        "gen_ai.usage.output_tokens": usage.total_output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read or None,
        "gen_ai.usage.cache_creation.input_tokens": (usage.cache_write_5m + usage.cache_write_1h) or None,
    }


def _money(name: str, money: Money | None) -> dict[str, Value | None]:
    """An exact decimal text and its currency: a double could not hold every amount."""
    if money is None:
        return {}
    return {f"metergate.{name}.amount": money.amount, f"metergate.{name}.currency": money.currency}
