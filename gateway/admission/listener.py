"""Who hears of budgets what happens to them, without a say in it."""

from __future__ import annotations

from typing import Protocol

from billing.budgets import BudgetRow
from gateway.admission.claims import BudgetWindow


class BudgetListener(Protocol):
    def spent(self, budget: BudgetRow, window: BudgetWindow, nano: int) -> None:
        """So much is spent in the period: the database's sum, once a second while it is in use."""

    def refused(self, budget: BudgetRow, window: BudgetWindow, left_nano: int, asked_nano: int) -> None:
        """A request that could cost `asked_nano` had no room in the `left_nano` that running requests leave."""


class Unheard:
    """Nobody asks."""

    def spent(self, budget: BudgetRow, window: BudgetWindow, nano: int) -> None: ...

    def refused(self, budget: BudgetRow, window: BudgetWindow, left_nano: int, asked_nano: int) -> None: ...
