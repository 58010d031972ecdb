"""A prepaid wallet as one more charge of a claim: what may be spent is its balance and the team's credit limit.

To a store it is a budget without a period whose spending is the balance with its sign turned: usage raises it, payments lower it,
and the limit is the credit. So the same step admits, the same snapshot of the database corrects it once a second, and a top-up
needs no news of its own.
"""

from __future__ import annotations

from typing import Final

from billing.budgets import BudgetRow
from billing.teams import TeamRow
from gateway.admission.claims import WALLET_PREFIX, BudgetWindow

WALLET: Final = "wallet"
WALLET_ID: Final = 0
"""No budget has this id, and no request draws on two wallets."""


def wallet_budget(team: TeamRow) -> BudgetRow:
    """The team's wallet in the form of a hard budget of its credit limit."""
    return BudgetRow(
        WALLET_ID,
        WALLET,
        team.id,
        team.credit_limit_nano or 0,
        team.settlement_currency,
        period="total",
        timezone="UTC",
        hard=True,
    )


def wallet_window(team_id: str, currency: str) -> BudgetWindow:
    return BudgetWindow(WALLET_ID, f"{WALLET_PREFIX}{currency}/{team_id}")


def wallet_of(window: BudgetWindow) -> tuple[str, str] | None:
    """Team and currency, when the window is a wallet's."""
    if not window.window.startswith(WALLET_PREFIX):
        return None
    currency, _, team_id = window.window.removeprefix(WALLET_PREFIX).partition("/")
    return team_id, currency
