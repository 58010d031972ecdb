"""Sell prices: what a team is sold at, where that is not simply the provider's price of the route that served.

A row says it for everything, for one price list, one model, or one model of one list: either another price list (own prices, in
whatever currency they stand) or a multiple of the price. The most specific row in force applies. Rows are append-only; the
pinned version of the book decides which of them a request knows. A multiplier of 1 is the provider's price again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from billing.money import MICRO
from billing.prices import PriceBook


@dataclass(frozen=True, slots=True)
class SellRow:
    """Exactly one of `sell_list` and `multiplier_micro` (millionths) is set; a None `price_list` or `model` means any."""

    id: int
    team_id: str
    price_list: str | None
    model: str | None
    sell_list: str | None
    multiplier_micro: int | None
    effective_from_us: int
    recorded_at_us: int = 0


class Sold(msgspec.Struct, frozen=True):
    """On which list a team buys, and at which multiple of its prices. `sell_id` is 0 where no row says anything."""

    price_list: str
    multiplier_micro: int
    sell_id: int


class SellBook:
    """All sell rows ever recorded, immutable. `version` is the highest row id; 0 is the empty book."""

    def __init__(self, rows: Iterable[SellRow] = ()) -> None:
        self.rows: tuple[SellRow, ...] = tuple(sorted(rows, key=lambda row: row.id))
        self.version = self.rows[-1].id if self.rows else 0
        self._by_id = {row.id: row for row in self.rows}
        self._teams: dict[str, dict[tuple[str | None, str | None], list[SellRow]]] = {}
        for row in sorted(self.rows, key=lambda row: (row.effective_from_us, row.id), reverse=True):
            self._teams.setdefault(row.team_id, {}).setdefault((row.price_list, row.model), []).append(row)

    def find(self, team_id: str, price_list: str, model: str, at_us: int, version: int) -> SellRow | None:
        """The row in force for this team on this route: of one model on one list, else of the model, of the list, of all."""
        own = self._teams.get(team_id)
        if own is None:
            return None
        for key in ((price_list, model), (None, model), (price_list, None), (None, None)):
            for row in own.get(key, ()):
                if row.id <= version and row.effective_from_us <= at_us:
                    return row
        return None

    def by_id(self, row_id: int) -> SellRow | None:
        return self._by_id.get(row_id)

    def sold(
        self, prices: PriceBook, team_id: str, price_list: str, model: str, *, at_us: int, book: int, version: int
    ) -> Sold:
        """What `find` means for this route. An own list that cannot price the model leaves the route's price in force."""
        row = self.find(team_id, price_list, model, at_us, version) if self.rows else None
        if row is None:
            return Sold(price_list, MICRO, 0)
        if row.sell_list is None:
            assert row.multiplier_micro is not None
            return Sold(price_list, row.multiplier_micro, row.id)
        if prices.covers(row.sell_list, model, at_us=at_us, version=book):
            return Sold(row.sell_list, MICRO, row.id)
        return Sold(price_list, MICRO, 0)
