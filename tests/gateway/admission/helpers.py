"""A simulated clock, and claims made in one line."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from gateway.admission.claims import Answer, Base, BudgetWindow, Charge, Claim, Granted, Refused, Scope
from gateway.admission.limits import Limits
from gateway.admission.store import LimitStore
from gateway.ids import new_request_id

START_US = 1_790_000_000_000_000
SECOND_US = 1_000_000
WINDOW = "1789948800000000-1790035200000000"


class Clock:
    """Microseconds since the epoch; moves only when told."""

    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * SECOND_US)


def charge(nano: int, limit: int, budget_id: int = 1, window: str = WINDOW, hard: bool = True) -> Charge:
    return Charge(budget_id, nano, limit, window, BudgetWindow(budget_id, window).bounds()[1], hard)


def claim(
    *charges: Charge,
    key: str = "key_a",
    requests: int | None = None,
    tokens_limit: int | None = None,
    parallel: int | None = None,
    tokens: int = 0,
    request_id: UUID | None = None,
    ttl_s: float = 60,
) -> Claim:
    limits = Limits(requests, tokens_limit, parallel)
    return Claim(request_id or new_request_id(), (Scope(key, limits),), tokens, charges, round(ttl_s * SECOND_US))


async def seeded(store: LimitStore, *budget_ids: int, spent: int = 0, window: str = WINDOW) -> None:
    bases = {BudgetWindow(budget_id, window): Base(spent, 0) for budget_id in budget_ids}
    assert await store.reconcile(bases, [])


def granted(answer: Answer) -> Granted:
    assert isinstance(answer, Granted), answer
    return answer


def refused(answer: Answer) -> Refused:
    assert isinstance(answer, Refused), answer
    return answer


async def spent_and_reserved(store: LimitStore, budget_id: int = 1, window: str = WINDOW) -> tuple[int, int]:
    view = await store.view("nobody", [BudgetWindow(budget_id, window)])
    state = view.budgets[BudgetWindow(budget_id, window)]
    return state.spent_nano, state.reserved_nano


async def running(store: LimitStore, windows: Sequence[BudgetWindow] = (), key: str = "key_a") -> int:
    return (await store.view(key, windows)).counters.parallel
