"""What a batch of records is in each table, as tuples in the order of the columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

import msgspec

from billing.records import UsageRecord
from billing.rollups import Rows, ids_text
from billing.times import now_us

_encode: Final = msgspec.json.Encoder().encode


def as_bytes(request_id: UUID | None) -> bytes | None:
    return None if request_id is None else request_id.int.to_bytes(16, "big")


def as_uuid(request_id: UUID | None) -> UUID | None:
    return request_id


def usage_rows(records: Iterable[UsageRecord], as_id: Any) -> Rows:
    recorded_at_us = now_us()
    rows = []
    for each in records:
        usage, rated, pins = each.usage, each.rated, each.pins
        listed, settled, policy, reference, cost = rated.list, rated.settled, rated.policy, rated.reference, rated.cost
        rows.append(
            (
                as_id(each.id),
                each.kind,
                as_id(each.corrects_id),
                each.team_id,
                each.key_id,
                each.model,
                each.provider,
                each.provider_model,
                each.surface,
                each.status,
                each.estimated,
                each.streamed,
                usage.total_input,
                usage.total_output,
                usage.reasoning,
                usage.compute_us,
                usage.flaw,
                None if listed is None else listed.currency,
                None if listed is None else listed.nano,
                each.settlement_currency,
                None if settled is None else settled.nano,
                None if policy is None else policy.nano,
                None if reference is None else reference.nano,
                None if cost is None else cost.currency,
                None if cost is None else cost.nano,
                rated.terms_id,
                ids_text(rated.rate_ids),
                rated.unpriced,
                pins.book,
                pins.rates,
                pins.terms,
                pins.sell,
                rated.sell_id,
                None if rated.margin is None else rated.margin.nano,
                _encode(each.tags).decode() if each.tags else "{}",
                each.latency_us,
                each.ttft_us,
                each.error,
                recorded_at_us,
            )
        )
    return rows


def line_rows(records: Iterable[UsageRecord], as_id: Any) -> Rows:
    rows = []
    for each in records:
        usage_id = as_id(each.id)
        for line in each.rated.lines:
            rows.append(
                (
                    usage_id,
                    str(line.token_class),
                    line.quantity,
                    line.price_row_id,
                    line.currency,
                    line.list_nano,
                    line.settled_nano,
                    line.policy_nano,
                    line.reference_nano,
                )
            )
    return rows


def attempt_rows(records: Iterable[UsageRecord], as_id: Any) -> Rows:
    rows = []
    for each in records:
        usage_id = as_id(each.id)
        for attempt in each.attempts:
            cost, hour = attempt.cost, attempt.cost_per_hour
            rows.append(
                (
                    usage_id,
                    attempt.sequence,
                    attempt.provider,
                    attempt.provider_model,
                    attempt.status,
                    None if attempt.usage is None else _encode(attempt.usage).decode(),
                    None if cost is None else cost.currency,
                    None if cost is None else cost.nano,
                    ids_text(attempt.price_row_ids),
                    attempt.error,
                    attempt.started_at_us,
                    attempt.latency_us,
                    attempt.ttft_us,
                    attempt.service_tier,
                    attempt.processing,
                    None if hour is None else hour.currency,
                    None if hour is None else hour.nano,
                )
            )
    return rows


ROWS: Final = {"usage": usage_rows, "usage_lines": line_rows, "attempts": attempt_rows}
