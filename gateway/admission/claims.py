"""What a request asks of the limits, and what a store answers.

A claim is admitted whole or not at all. Amounts are integer nano of the budget's own currency; a store never sees a currency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from gateway.admission.limits import Limits


@dataclass(frozen=True, slots=True)
class BudgetWindow:
    """One period of one budget: what spending is counted against. `window` is "start-end" in us; no end for a total."""

    budget_id: int
    window: str

    @staticmethod
    def name(start_us: int, end_us: int | None) -> str:
        return f"{start_us}-{'' if end_us is None else end_us}"

    def bounds(self) -> tuple[int, int | None]:
        """(start_us, end_us)."""
        start, _, end = self.window.partition("-")
        return int(start), int(end) if end else None


@dataclass(frozen=True, slots=True)
class Charge:
    """`amount_nano` (>= 0) to reserve in one budget's period, of which `limit_nano` may be spent. Soft budgets only count."""

    budget_id: int
    amount_nano: int
    limit_nano: int
    window: str
    ends_us: int | None
    hard: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose minute and slots a request uses: a key's, or one key's for one model. `limits` may change between requests."""

    name: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Claim:
    """All that one request needs. `tokens` is the estimate that token limits count until settlement.

    The lease that it becomes lasts `ttl_us` unless renewed. Every scope and every charge must have room, or none is touched.
    """

    request_id: UUID
    scopes: tuple[Scope, ...]
    tokens: int
    charges: tuple[Charge, ...]
    ttl_us: int


@dataclass(frozen=True, slots=True)
class Counters:
    """A scope's state after an answer: used in the sliding minute, and how long until each window is empty if nothing comes."""

    requests_used: int = 0
    tokens_used: int = 0
    parallel: int = 0
    requests_reset_us: int = 0
    tokens_reset_us: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    """`counters` of each scope, in the claim's order."""

    counters: tuple[Counters, ...]


RefusedBy = Literal["requests", "tokens", "parallel", "budget"]


@dataclass(frozen=True, slots=True)
class Refused:
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


@dataclass(frozen=True, slots=True)
class Unseeded:
    """These budget periods are unknown to the store: reconcile them with the database, then ask again."""

    windows: tuple[BudgetWindow, ...]


Answer = Granted | Refused | Unseeded


@dataclass(frozen=True, slots=True)
class Base:
    """A budget period's spending as the database has it; `version` is that of the base which it replaces."""

    nano: int
    version: int


@dataclass(frozen=True, slots=True)
class Unshipped:
    """Settlements that the database was not yet known to hold (`complete`: all of them), and the version of each budget period's
    base (0: unseeded)."""

    settled: dict[UUID, dict[BudgetWindow, int]]
    versions: dict[BudgetWindow, int]
    complete: bool


@dataclass(frozen=True, slots=True)
class BudgetState:
    """`spent_nano` = the database's sum as last reconciled + what settled since; `reserved_nano` by live leases."""

    seeded: bool = False
    spent_nano: int = 0
    reserved_nano: int = 0


@dataclass(frozen=True, slots=True)
class View:
    counters: Counters
    budgets: dict[BudgetWindow, BudgetState]
