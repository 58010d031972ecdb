"""Tables of differences: what rows say beside what they would say, by team and model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Row

from billing.money import Money
from billing.rated import Rated
from billing.records import MoneyView


class Amounts(msgspec.Struct, frozen=True):
    """Sums per currency; `unpriced` counts requests that have no settled amount and are in no sum."""

    list: tuple[MoneyView, ...]
    settled: tuple[MoneyView, ...]
    cost: tuple[MoneyView, ...]
    unpriced: int


class Difference(msgspec.Struct, frozen=True):
    """One team and model. `difference` is what-if less actual, of the settled amounts; negative: cheaper."""

    team_id: str
    model: str
    requests: int
    tokens: int
    actual: Amounts
    what_if: Amounts
    difference: tuple[MoneyView, ...]


@dataclass(slots=True)
class Sums:
    """Amounts so far, per currency."""

    listed: dict[str, int] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    cost: dict[str, int] = field(default_factory=dict)
    unpriced: int = 0

    def add(self, listed: Money | None, settled: Money | None, cost: Money | None) -> None:
        for sums, money in ((self.listed, listed), (self.settled, settled), (self.cost, cost)):
            if money is not None:
                sums[money.currency] = sums.get(money.currency, 0) + money.nano
        self.unpriced += settled is None

    def view(self) -> Amounts:
        return Amounts(_views(self.listed), _views(self.settled), _views(self.cost), self.unpriced)


@dataclass(slots=True)
class Group:
    """The requests of one team and model."""

    requests: int = 0
    tokens: int = 0
    actual: Sums = field(default_factory=Sums)
    what_if: Sums = field(default_factory=Sums)

    def add(self, row: Row[Any], rated: Rated) -> None:
        """A usage row, and what it would be."""
        self.requests += 1
        self.tokens += row.total_input + row.total_output
        self.actual.add(
            _money(row.list_currency, row.list_nano),
            _money(row.settlement_currency, row.settled_nano),
            _money(row.cost_currency, row.cost_nano),
        )
        self.what_if.add(rated.list, rated.settled, rated.cost)

    def difference(self, team_id: str, model: str) -> Difference:
        actual, other = self.actual.settled, self.what_if.settled
        apart = {currency: other.get(currency, 0) - actual.get(currency, 0) for currency in {*actual, *other}}
        return Difference(
            team_id, model, self.requests, self.tokens, self.actual.view(), self.what_if.view(), _views(apart)
        )


def _money(currency: str | None, nano: int | None) -> Money | None:
    return None if currency is None or nano is None else Money(currency, nano)


def _views(sums: dict[str, int]) -> tuple[MoneyView, ...]:
    return tuple(MoneyView(Money(currency, nano).amount, currency) for currency, nano in sorted(sums.items()))
