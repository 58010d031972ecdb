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
    """One period of one budget: what spending is counted against. `window` is the period's start in us, as text."""

    budget_id: int
    window: str


@dataclass(frozen=True, slots=True)
class Charge:
    """`amount_nano` to reserve in one budget's period, of which `limit_nano` may be spent. Soft budgets only count."""

    budget_id: int
    amount_nano: int
    limit_nano: int
    window: str
    ends_us: int | None
    hard: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """All that one request needs. `tokens` is the estimate that the minute's token limit counts until settlement."""

    request_id: UUID
    key_id: str
    limits: Limits
    tokens: int
    charges: tuple[Charge, ...]
    ttl_us: int


@dataclass(frozen=True, slots=True)
class Counters:
    """A key's state after an answer: used in the sliding minute, and when each window is empty again if nothing follows."""

    requests_used: int = 0
    tokens_used: int = 0
    parallel: int = 0
    requests_reset_us: int = 0
    tokens_reset_us: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    counters: Counters


RefusedBy = Literal["requests", "tokens", "parallel", "budget"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was consumed. `retry_after_us` is when the windows have room if nobody else comes first; None means never.

    It is 0 where time alone does not help (parallel slots, budgets). `available_nano` is what the budget has left.
    """

    by: RefusedBy
    counters: Counters
    retry_after_us: int | None = 0
    budget_id: int | None = None
    available_nano: int = 0


@dataclass(frozen=True, slots=True)
class Unseeded:
    """These budget periods are unknown to the store: reconcile them with the database, then ask again."""

    windows: tuple[BudgetWindow, ...]


Answer = Granted | Refused | Unseeded


@dataclass(frozen=True, slots=True)
class Unshipped:
    """Settlements of one budget period that the database was not yet known to hold, oldest first, and the base's version."""

    version: int
    amounts: dict[UUID, int]


@dataclass(frozen=True, slots=True)
class BudgetState:
    """`spent_nano` = the database's sum as last reconciled + what settled since; `reserved_nano` by live leases."""

    seeded: bool = False
    spent_nano: int = 0
    reserved_nano: int = 0


@dataclass(frozen=True, slots=True)
class KeyView:
    counters: Counters
    budgets: dict[BudgetWindow, BudgetState]
