"""Coarse rollups: the same sums as `rollup_traffic`, over spans of up to sixteen days, for questions about a month or a year.

`rollup_routes` leaves out the key, `rollup_keys` the route. Both hold, for each span that ends by the mark (`rollup_mark`), the
sums of its quarter-hours: exactly, at every commit. What a question asks for is covered from the longest spans that lie
inside it down to quarter-hours at its ragged edges and past the mark, so a day of any time zone is exact.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Table

from billing.coarse_tables import CURRENCIES, KEY_NAMES, ROUTE_NAMES, rollup_keys, rollup_routes
from billing.tables import TRAFFIC_KEY
from billing.times import DAY_US, HOUR_US, QUARTER_US

FINE: Final = 0
"""In place of a span: the quarter-hours of `rollup_traffic` themselves."""


@dataclass(frozen=True, slots=True)
class Coarse:
    """One coarse rollup: what its cells are named by beside currencies, and its spans; each divides the next."""

    table: Table
    names: tuple[str, ...]
    spans: tuple[int, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return ("span_us", "bucket_us", *self.names, *CURRENCIES)

    @property
    def key_at(self) -> tuple[int, ...]:
        """Where its names and currencies stand in the key of `rollup_traffic`."""
        return tuple(TRAFFIC_KEY.index(name) for name in (*self.names, *CURRENCIES))


_LONG: Final = (HOUR_US, 4 * HOUR_US, DAY_US, 4 * DAY_US, 16 * DAY_US)
ROUTES: Final = Coarse(rollup_routes, ROUTE_NAMES, (QUARTER_US, *_LONG))
KEYS: Final = Coarse(rollup_keys, KEY_NAMES, _LONG)
COARSE: Final = (ROUTES, KEYS)


class Piece(NamedTuple):
    """A stretch of time read in cells of `span_us` (`FINE`: quarter-hours of `rollup_traffic`)."""

    span_us: int
    start_us: int
    end_us: int


def coarse_for(names: Collection[str]) -> Coarse | None:
    """The smallest rollup that knows all these columns, or None where only `rollup_traffic` does."""
    return next((each for each in COARSE if set(names) <= set(each.names)), None)


def cover(spans: Sequence[int], mark_us: int, start_us: int, end_us: int) -> list[Piece]:
    """[start, end) in order, in the longest spans that fit and end by the mark."""
    if start_us >= end_us:
        return []
    if not spans:
        return [Piece(FINE, start_us, end_us)]
    *finer, span_us = spans
    low = -(-start_us // span_us) * span_us
    high = min(end_us, mark_us) // span_us * span_us
    if low >= high:
        return cover(finer, mark_us, start_us, end_us)
    before, after = cover(finer, mark_us, start_us, low), cover(finer, mark_us, high, end_us)
    return [*before, Piece(span_us, low, high), *after]
