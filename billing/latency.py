"""How long answers took: quantiles out of the rollups' histogram, and the times to first token of the newest requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.rollup_reads import rollup_sums
from billing.tables import LATENCY_BOUNDS_MS, LATENCY_COLUMNS
from billing.times import first_id_at

NEWEST: Final = 1000
"""So many requests are looked at, streamed or not: a range without a stream costs no more than one full of them."""


@dataclass(frozen=True, slots=True)
class Latency:
    """`within_ms` says per percentile within how many ms that share was answered; None: longer than the last bound.

    `first_token_ms` are exact quantiles of those of the `NEWEST` requests that have one; `sampled` says of how many."""

    requests: int
    within_ms: Mapping[int, int | None]
    first_token_ms: Mapping[int, int]
    sampled: int


async def latency(
    connection: AsyncConnection,
    start_us: int,
    end_us: int,
    *,
    team_id: str | None = None,
    percentiles: tuple[int, ...] = (50, 95),
) -> Latency:
    """Over start (inside) to end (outside), both on a quarter-hour; of one team or of all."""
    where = {} if team_id is None else {"team_id": team_id}
    rows = await rollup_sums(connection, [(start_us, end_us)], LATENCY_COLUMNS, where=where)
    counts = [sum(row.sums[at] for row in rows) for at in range(len(LATENCY_COLUMNS))]
    total = sum(counts)
    within = {each: _bound(counts, total, each) for each in percentiles} if total else {}
    columns = tables.usage.c
    query = select(columns.ttft_us).where(columns.id >= first_id_at(start_us), columns.id < first_id_at(end_us))
    if team_id is not None:
        query = query.where(columns.team_id == team_id)
    found = await connection.scalars(query.order_by(columns.id.desc()).limit(NEWEST))
    newest = sorted(each for each in found if each is not None)
    first = {each: newest[(len(newest) - 1) * each // 100] // 1000 for each in percentiles} if newest else {}
    return Latency(total, within, first, len(newest))


def _bound(counts: list[int], total: int, percentile: int) -> int | None:
    """The smallest bound that so many percent of the requests stayed within."""
    below = 0
    for bound, count in zip(LATENCY_BOUNDS_MS, counts, strict=False):
        below += count
        if below * 100 >= total * percentile:
            return bound
    return None
