"""Which period of a budget a moment falls into, remembered until the moment leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from billing.budgets import BudgetRow, period_bounds
from gateway.admission.claims import BudgetWindow


@dataclass(frozen=True, slots=True)
class Period:
    start_us: int
    end_us: int | None
    window: BudgetWindow

    def holds(self, at_us: int) -> bool:
        return self.start_us <= at_us and (self.end_us is None or at_us < self.end_us)


class Periods:
    """The present period of each budget: computing one costs a time-zone look-up, and it changes once a day at most."""

    def __init__(self) -> None:
        self._present: dict[int, Period] = {}

    def of(self, budget: BudgetRow, at_us: int) -> Period:
        present = self._present.get(budget.id)
        if present is None or not present.holds(at_us):
            start_us, end_us = period_bounds(budget.period, budget.timezone, at_us)
            present = Period(start_us, end_us, BudgetWindow(budget.id, BudgetWindow.name(start_us, end_us)))
            self._present[budget.id] = present
        return present
