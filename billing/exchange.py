"""Exchange rates of three kinds that are never mixed up, and exact quotes out of them.

`reference` is the market, `policy` the official rate that a statement compares with, `contract` what somebody agreed. Rows
are append-only and bitemporal: a quote is asked for a moment (`at_us`) as a version of the book (`version`, the highest row id)
knew it. An inverse is derived, a cross over a third currency is quantised once to twelve decimals and names both legs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from billing.money import PICO, divide_half_even
from billing.times import DAY_US

REFERENCE_MAX_AGE_US: Final = 7 * DAY_US
"""How old the last published market rate may be: long enough for Easter and Christmas, too short for a dead feed."""


class RateKind(StrEnum):
    REFERENCE = "reference"
    POLICY = "policy"
    CONTRACT = "contract"


@dataclass(frozen=True, slots=True)
class RateRow:
    """One unit of `base` is `rate_pico` 1e-12 units of `quote`, from `effective_from_us` until the next row of the pair."""

    id: int
    base: str
    quote: str
    kind: RateKind
    rate_pico: int
    source: str
    effective_from_us: int
    recorded_at_us: int


class Quote(msgspec.Struct, frozen=True):
    """An exact rational: an amount of the base times numerator / denominator is the amount of the quote currency."""

    numerator: int
    denominator: int
    rate_ids: tuple[int, ...]


IDENTITY: Final = Quote(1, 1, ())


class _Pair:
    """The rows of one unordered pair and kind, sorted by the moment they start and then by when they were recorded."""

    __slots__ = ("rows", "starts")

    def __init__(self, rows: list[RateRow]) -> None:
        self.rows = sorted(rows, key=lambda row: (row.effective_from_us, row.id))
        self.starts = [row.effective_from_us for row in self.rows]

    def last(self, at_us: int, version: int) -> RateRow | None:
        for index in range(bisect_right(self.starts, at_us) - 1, -1, -1):
            row = self.rows[index]
            if row.id <= version:
                return row
        return None


class RateBook:
    """All rates ever recorded, immutable. `version` is the highest row id; 0 is the empty book."""

    def __init__(self, rows: Iterable[RateRow], reference_max_age_us: int = REFERENCE_MAX_AGE_US) -> None:
        self.rows: tuple[RateRow, ...] = tuple(sorted(rows, key=lambda row: row.id))
        self.version = self.rows[-1].id if self.rows else 0
        self.reference_max_age_us = reference_max_age_us
        self._by_id = {row.id: row for row in self.rows}
        grouped: dict[tuple[RateKind, str, str], list[RateRow]] = {}
        neighbours: dict[tuple[RateKind, str], set[str]] = {}
        for row in self.rows:
            grouped.setdefault((row.kind, *sorted((row.base, row.quote))), []).append(row)  # type: ignore[arg-type]
            neighbours.setdefault((row.kind, row.base), set()).add(row.quote)
            neighbours.setdefault((row.kind, row.quote), set()).add(row.base)
        self._pairs = {key: _Pair(pair_rows) for key, pair_rows in grouped.items()}
        self._neighbours = {key: frozenset(names) for key, names in neighbours.items()}

    def find(self, kind: RateKind, base: str, quote: str, at_us: int, version: int) -> Quote | None:
        """The rate in force at `at_us`: a row of the pair (inverted where it stands the other way round), else a cross over
        one third currency. None: no rate leads there, or the last reference rate is older than the stated maximum age."""
        if base == quote:
            return IDENTITY
        row = self._row(kind, base, quote, at_us, version)
        if row is not None:
            if row.base == base:
                return Quote(row.rate_pico, PICO, (row.id,))
            return Quote(PICO, row.rate_pico, (row.id,))
        none: frozenset[str] = frozenset()
        between = self._neighbours.get((kind, base), none) & self._neighbours.get((kind, quote), none)
        for pivot in sorted(between, key=lambda code: (code != "EUR", code != "USD", code)):
            first = self._row(kind, base, pivot, at_us, version)
            second = self._row(kind, pivot, quote, at_us, version)
            if first is not None and second is not None:
                return _cross(first, base, second, quote)
        return None

    def by_id(self, row_id: int) -> RateRow | None:
        return self._by_id.get(row_id)

    def last(self, kind: RateKind, base: str, quote: str) -> RateRow | None:
        """The newest row of this pair, whichever way round it stands."""
        low, high = sorted((base, quote))
        pair = self._pairs.get((kind, low, high))
        return pair.rows[-1] if pair is not None else None

    def _row(self, kind: RateKind, base: str, quote: str, at_us: int, version: int) -> RateRow | None:
        pair = self._pairs.get((kind, base, quote) if base < quote else (kind, quote, base))
        if pair is None:
            return None
        row = pair.last(at_us, version)
        if row is None:
            return None
        if kind is RateKind.REFERENCE and at_us - row.effective_from_us > self.reference_max_age_us:
            return None
        return row


def _cross(first: RateRow, base: str, second: RateRow, quote: str) -> Quote | None:
    numerator, denominator = (first.rate_pico, PICO) if first.base == base else (PICO, first.rate_pico)
    if second.quote == quote:
        numerator, denominator = numerator * second.rate_pico, denominator * PICO
    else:
        numerator, denominator = numerator * PICO, denominator * second.rate_pico
    crossed = divide_half_even(numerator * PICO, denominator)
    if crossed == 0:
        return None
    return Quote(crossed, PICO, (first.id, second.id))
