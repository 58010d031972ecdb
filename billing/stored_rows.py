"""Usage rows and lines, as they stand in the tables, back in the form in which they were recorded."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from billing.books import EMPTY_PINS
from billing.money import Money
from billing.rated import Rated, RatedLine
from billing.reads import parse_ids
from billing.records import UsageRecord
from billing.usage import TokenClass, Usage


def line_of(row: Row[Any]) -> RatedLine:
    """A line as it was rated."""
    return RatedLine(
        TokenClass(row.token_class), row.quantity, row.price_row_id, row.currency, row.list_nano, row.settled_nano,
        row.policy_nano, row.reference_nano,
    )  # fmt: skip


def record_of(row: Row[Any], lines: tuple[RatedLine, ...]) -> UsageRecord:
    """As much of the record as the rollups were made of."""

    def money(currency: str | None, nano: int | None) -> Money | None:
        return None if nano is None or currency is None else Money(currency, nano)

    pays = row.settlement_currency
    rated = Rated(
        lines, money(row.list_currency, row.list_nano), money(pays, row.settled_nano), money(pays, row.policy_nano),
        money(pays, row.reference_nano), money(row.cost_currency, row.cost_nano), (), tuple(parse_ids(row.rate_ids)),
        row.terms_id, (), row.unpriced, row.sell_id, money(pays, row.margin_nano),
    )  # fmt: skip
    return UsageRecord(
        id=row.id, team_id=row.team_id, key_id=row.key_id, model=row.model, provider=row.provider,
        provider_model=row.provider_model, surface=row.surface, status=row.status, estimated=row.estimated,
        streamed=row.streamed, usage=Usage(reasoning=row.reasoning), rated=rated, attempts=(), tags={},
        latency_us=row.latency_us, ttft_us=None, error=None, pins=EMPTY_PINS, settlement_currency=pays, kind=row.kind,
    )  # fmt: skip
