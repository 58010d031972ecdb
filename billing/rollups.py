"""Rollups: sums per UTC quarter-hour, incremented only by rows that an insert returned as new, in its transaction."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import add
from typing import Any, Final, TypeAlias

from billing.coarse import Coarse
from billing.records import UsageRecord
from billing.tables import LATENCY_BOUNDS_MS, LATENCY_COLUMNS, MONEY_COLUMNS, TOKEN_COLUMNS, TRAFFIC_KEY, TRAFFIC_SUMS
from billing.times import quarter_of, time_us_of

ERROR_STATUSES: Final = frozenset({"failed", "incomplete", "lost"})
_TOKENS_AT: Final = {name: TRAFFIC_SUMS.index(name) for name in TOKEN_COLUMNS}
_REASONING_AT: Final = TRAFFIC_SUMS.index("reasoning")
_MONEY_AT: Final = TRAFFIC_SUMS.index(MONEY_COLUMNS[0])
_NEGATIVE_AT: Final = TRAFFIC_SUMS.index("negative_margin")
_UNREFERENCED_AT: Final = TRAFFIC_SUMS.index("unreferenced_nano")
_LATENCY_AT: Final = TRAFFIC_SUMS.index("latency_us")
_HISTOGRAM_AT: Final = TRAFFIC_SUMS.index(LATENCY_COLUMNS[0])
_LATENCY_BOUNDS_US: Final = [bound * 1000 for bound in LATENCY_BOUNDS_MS]
_NO_SUMS: Final = [0] * len(TRAFFIC_SUMS)

Rows = list[tuple[Any, ...]]
_LineSums: TypeAlias = tuple[int, int, int | None, int | None, int | None, int | None]
"""Lines, quantity, and the four amounts of lines of one kind."""
_NO_LINES: Final[_LineSums] = (0, 0, 0, 0, 0, 0)


def ids_text(ids: tuple[int, ...]) -> str:
    """Row ids as they stand in a text column: "12,13"; empty for none."""
    return ",".join(map(str, ids)) if ids else ""


def traffic_rows(records: Iterable[UsageRecord]) -> Rows:
    """What these records add to `rollup_traffic`, sorted by its key."""
    cells: dict[tuple[str | int, ...], list[int]] = {}
    for record in records:
        rated = record.rated
        key = (
            quarter_of(time_us_of(record.id)),
            record.team_id,
            record.key_id,
            record.model,
            record.provider or "",
            record.provider_model or "",
            rated.list.currency if rated.list is not None else "",
            record.settlement_currency,
            rated.cost.currency if rated.cost is not None else "",
        )
        sums = cells.get(key)
        if sums is None:
            sums = cells[key] = _NO_SUMS.copy()
        sign = -1 if record.kind == "reversal" else 1
        sums[0] += sign
        if record.status in ERROR_STATUSES:
            sums[1] += sign
        if rated.unpriced is not None:
            sums[2] += sign
        if record.estimated:
            sums[3] += sign
        for line in rated.lines:
            sums[_TOKENS_AT[line.token_class]] += line.quantity
        sums[_REASONING_AT] += record.usage.reasoning
        at = _MONEY_AT
        for money in (rated.list, rated.settled, rated.policy, rated.reference, rated.cost, rated.margin):
            if money is not None:
                sums[at] += money.nano
            at += 1
        if rated.list is not None and rated.reference is None:
            sums[_UNREFERENCED_AT] += rated.list.nano
        if rated.margin is not None and sign * rated.margin.nano < 0:
            sums[_NEGATIVE_AT] += sign
        sums[_LATENCY_AT] += sign * record.latency_us
        sums[_HISTOGRAM_AT + bisect_left(_LATENCY_BOUNDS_US, record.latency_us)] += sign
    return [(*key, *cells[key]) for key in sorted(cells)]


def late_rows(traffic: Rows, coarse: Coarse, mark_us: int) -> Rows:
    """What these cells of `rollup_traffic` add to the spans over them that are folded already, sorted by their key."""
    cells: dict[tuple[str | int, ...], list[int]] = {}
    for row in traffic:
        bucket_us: int = row[0]
        if bucket_us >= mark_us:
            continue
        names = tuple([row[at] for at in coarse.key_at])
        sums = row[len(TRAFFIC_KEY) :]
        for span_us in coarse.spans:
            start_us = bucket_us - bucket_us % span_us
            if start_us + span_us > mark_us:
                break  # and so do the longer ones
            key = (span_us, start_us, *names)
            there = cells.get(key)
            cells[key] = list(sums) if there is None else list(map(add, there, sums))
    return [(*key, *cells[key]) for key in sorted(cells)]


def money_rows(records: Iterable[UsageRecord]) -> Rows:
    """What these records add to `rollup_money`, sorted by its key. An amount that the lines lack stays NULL."""
    shared: dict[tuple[object, ...], dict[tuple[str, int | None, str | None], _LineSums]] = {}
    for record in records:
        rated = record.rated
        if not rated.lines:
            continue
        head = (
            record.team_id,
            quarter_of(time_us_of(record.id)),
            record.model,
            record.provider or "",
            record.provider_model or "",
            rated.terms_id,
            rated.sell_id,
            rated.rate_ids,
            record.settlement_currency,
        )
        cells = shared.get(head)
        if cells is None:
            cells = shared[head] = {}
        sign = -1 if record.kind == "reversal" else 1
        for line in rated.lines:
            key = (line.token_class, line.price_row_id, line.currency)
            lines, quantity, listed, settled, policy, reference = cells.get(key, _NO_LINES)
            cells[key] = (
                lines + sign,
                quantity + line.quantity,
                _plus(listed, line.list_nano),
                _plus(settled, line.settled_nano),
                _plus(policy, line.policy_nano),
                _plus(reference, line.reference_nano),
            )
    return sorted(_money_row(head, key, sums) for head, cells in shared.items() for key, sums in cells.items())


def _money_row(head: Any, key: tuple[str, int | None, str | None], sums: _LineSums) -> tuple[Any, ...]:
    """In the order of the table's columns; 0 and '' stand for none."""
    team_id, bucket, model, provider, provider_model, terms_id, sell_id, rate_ids, settlement_currency = head
    token_class, price_row_id, list_currency = key
    return (
        team_id, bucket, model, provider, provider_model, str(token_class), price_row_id or 0, terms_id or 0, sell_id or 0,
        ids_text(rate_ids), list_currency or "", settlement_currency, *sums,
    )  # fmt: skip


def _plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
