"""Which period of a budget a moment falls into, remembered until the moment leaves it."""

from __future__ import annotations

from dataclasses import dataclass

from billing.budgets import BudgetRow, period_bounds
from gateway.admission.claims import BudgetWindow
from gateway.admission.wallet import WALLET, wallet_window


@dataclass(slots=True)
class Period:
    """`used_us` is for whoever wants to remember when it was last drawn upon."""

    start_us: int
    end_us: int | None
    window: BudgetWindow
    used_us: int = 0

    def holds(self, at_us: int) -> bool:
        return self.start_us <= at_us and (self.end_us is None or at_us < self.end_us)


class Periods:
    """The present period of each budget: computing one costs a time-zone look-up, and it changes once a day at most."""

    def __init__(self) -> None:
        self._present: dict[int, Period] = {}
        self._wallets: dict[str, Period] = {}

    def of(self, budget: BudgetRow, at_us: int) -> Period:
        if budget.scope == WALLET:
            return self._wallet(budget)
        present = self._present.get(budget.id)
        if present is None or not present.holds(at_us):
            start_us, end_us = period_bounds(budget.period, budget.timezone, at_us)
            present = Period(start_us, end_us, BudgetWindow(budget.id, BudgetWindow.name(start_us, end_us)))
            self._present[budget.id] = present
        return present

    def _wallet(self, budget: BudgetRow) -> Period:
        """A wallet has one period, which never ends."""
        assert budget.scope_id is not None
        period = self._wallets.get(budget.scope_id)
        if period is None:
            window = wallet_window(budget.scope_id, budget.currency)
            period = self._wallets[budget.scope_id] = Period(0, None, window)
        return period
