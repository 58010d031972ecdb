"""What a request asks of the limits, and what a store answers.

A claim is admitted whole or not at all. Amounts are integer nano of the budget's own currency; a store never sees a currency.
"""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from gateway.admission.limits import Limits

WALLET_PREFIX: Final = "wallet/"


class BudgetWindow(Struct, frozen=True):
    """One period of one budget: what spending is counted against. `window` is "start-end" in us; no end for a total.

    A wallet's (`wallet.py`) begins with `WALLET_PREFIX` and has no period."""

    budget_id: int
    window: str

    @staticmethod
    def name(start_us: int, end_us: int | None) -> str:
        return f"{start_us}-{'' if end_us is None else end_us}"

    def bounds(self) -> tuple[int, int | None]:
        """(start_us, end_us)."""
        if self.window.startswith(WALLET_PREFIX):
            return 0, None
        start, _, end = self.window.partition("-")
        return int(start), int(end) if end else None


class Charge(Struct, frozen=True):
    """`amount_nano` (>= 0) to reserve in one budget's period, of which `limit_nano` may be spent. Soft budgets only count."""

    budget_id: int
    amount_nano: int
    limit_nano: int
    window: str
    ends_us: int | None
    hard: bool


class Scope(Struct, frozen=True):
    """Whose minute and slots a request uses: a key's, or one key's for one model. `limits` may change between requests."""

    name: str
    limits: Limits


class Claim(Struct, frozen=True):
    """All that one request needs. `tokens` is the estimate that token limits count until settlement.

    The lease that it becomes lasts `ttl_us` unless renewed. Every scope and every charge must have room, or none is touched.
    """

    request_id: UUID
    scopes: tuple[Scope, ...]
    tokens: int
    charges: tuple[Charge, ...]
    ttl_us: int


class Counters(Struct, frozen=True):
    """A scope's state after an answer: used in the sliding minute, and how long until each window is empty if nothing comes."""

    requests_used: int = 0
    tokens_used: int = 0
    parallel: int = 0
    requests_reset_us: int = 0
    tokens_reset_us: int = 0


class Granted(Struct, frozen=True):
    """`counters` of each scope, in the claim's order."""

    counters: tuple[Counters, ...]


RefusedBy = Literal["requests", "tokens", "parallel", "budget"]


class Refused(Struct, frozen=True):
    """Nothing was consumed. `scope` (an index) or `budget_id` is what refused.

    After `retry_after_us` every window has room, if nobody else comes first; None means never. It is 0 where time alone does
    not help (parallel slots, budgets). `available_nano` is what the budget has left.
    """

    by: RefusedBy
    counters: tuple[Counters, ...]
    retry_after_us: int | None = 0
    scope: int = 0
    budget_id: int | None = None
    available_nano: int = 0


class Unseeded(Struct, frozen=True):
    """These budget periods are unknown to the store: reconcile them with the database, then ask again."""

    windows: tuple[BudgetWindow, ...]


Answer = Granted | Refused | Unseeded


class Base(Struct, frozen=True):
    """A budget period's spending as the database has it; `version` is that of the base which it replaces."""

    nano: int
    version: int


class Unshipped(Struct, frozen=True):
    """Settlements that the database was not yet known to hold (`complete`: all of them), and the version of each budget period's
    base (0: unseeded)."""

    settled: dict[UUID, dict[BudgetWindow, int]]
    versions: dict[BudgetWindow, int]
    complete: bool


class BudgetState(Struct, frozen=True):
    """`spent_nano` = the database's sum as last reconciled + what settled since; `reserved_nano` by live leases."""

    seeded: bool = False
    spent_nano: int = 0
    reserved_nano: int = 0


class View(Struct, frozen=True):
    counters: Counters
    budgets: dict[BudgetWindow, BudgetState]
