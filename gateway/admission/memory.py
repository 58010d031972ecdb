"""Limits of one process, in its memory: no await between reading and writing, so the event loop is the lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from uuid import UUID

from gateway.admission.claims import (
    Answer,
    Base,
    BudgetState,
    BudgetWindow,
    Charge,
    Claim,
    Granted,
    Refused,
    Unseeded,
    Unshipped,
    View,
)
from gateway.admission.memory_state import BudgetSum, HeldInScope, HeldLease, ScopeState, check_amended, check_scopes
from gateway.admission.store import AlreadyFinished
from gateway.admission.window import SECOND_US
from gateway.ids import uuid_of

REMEMBERED_US = 120 * SECOND_US
REMEMBERED_LEAST = 12_500
"""Finished request ids are remembered this long at least, or so many of them, to make settle and release idempotent; at most
twice as many."""
ENDED_MAX = 4096
"""So many leases may have ended and still stand in the queue of expiries; then it is made anew."""
PAST_PERIOD_US = 86_400 * SECOND_US
"""How long after its end a budget period is kept for late settlements."""


def steady_clock() -> Callable[[], int]:
    """Microseconds since the epoch that never step back when the wall clock does."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + offset_ns) // 1000


_NOTHING: Mapping[tuple[int, str], int] = {}


class MemoryStore:
    """`LimitStore` for one process and one event loop. `clock` gives microseconds since the epoch.

    `admit_now` and `settle_now` are `admit` and `settle` for whoever knows that nothing has to be waited for.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or steady_clock()
        self._scopes: dict[str, ScopeState] = {}
        self._budgets: dict[tuple[int, str], BudgetSum] = {}
        self._leases: dict[int, HeldLease] = {}  # by the int of the request id: a UUID hashes in Python
        self._expiries: list[tuple[int, int]] = []
        self._finished: set[int] = set()
        self._finished_before: set[int] = set()
        self._finished_since_us = 0
        self._unshipped: dict[int, dict[tuple[int, str], int]] = {}

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    async def admit(self, claim: Claim) -> Answer:
        return self.admit_now(claim)

    def admit_now(self, claim: Claim) -> Answer:
        now_us = self._clock()
        self._expire(now_us)
        request_id = claim.request_id.int
        if self._is_finished(request_id):
            raise AlreadyFinished(f"request {claim.request_id} was settled or released before it asked to be admitted")
        states = self._states(claim, now_us)
        if request_id in self._leases:
            return Granted(tuple([state.counters(now_us) for state in states]))
        return self._take(claim, states, now_us)

    async def amend(self, claim: Claim, tokens: int, charges: Sequence[Charge]) -> Answer:
        now_us = self._clock()
        self._expire(now_us)
        if self._is_finished(claim.request_id.int):
            raise AlreadyFinished(
                f"request {claim.request_id} was settled or released before it asked for an amendment"
            )
        states = self._states(claim, now_us)
        lease = self._leases.get(claim.request_id.int)
        if lease is None:
            anew = Claim(claim.request_id, claim.scopes, tokens, tuple(charges), claim.ttl_us)
            return self._take(anew, states, now_us)
        own = {(charge.budget_id, charge.window): charge.amount_nano for charge in lease.charges}
        blocked = self._check_budgets(charges, states, now_us, own) or check_amended(claim, lease, tokens, now_us)
        if blocked is not None:
            return blocked
        self._give_back(lease.charges)
        self._reserve(charges)
        lease.charges = tuple(charges)
        for held in lease.held:
            held.correct(held.requests, tokens, now_us // SECOND_US)
        return Granted(tuple([state.counters(now_us) for state in states]))

    async def settle(self, claim: Claim, tokens: int, amounts: Mapping[int, int]) -> bool:
        return self.settle_now(claim, tokens, amounts)

    def settle_now(self, claim: Claim, tokens: int, amounts: Mapping[int, int]) -> bool:
        now_us = self._clock()
        self._expire(now_us)
        if not self._finish(claim.request_id.int, now_us):
            return False
        lease = self._leases.pop(claim.request_id.int, None)
        if lease is not None:
            self._give_back(lease.charges)
            for held in lease.held:
                held.state.parallel -= 1
                held.correct(held.requests, tokens, now_us // SECOND_US)
        self._post(claim, amounts)
        return True

    async def release(self, claim: Claim) -> bool:
        now_us = self._clock()
        self._expire(now_us)
        if not self._finish(claim.request_id.int, now_us):
            return False
        lease = self._leases.pop(claim.request_id.int, None)
        if lease is not None:
            self._give_back(lease.charges)
            for held in lease.held:
                held.state.parallel -= 1
                held.correct(0, 0, now_us // SECOND_US)
        return True

    async def renew(self, claims: Iterable[Claim]) -> None:
        now_us = self._clock()
        self._expire(now_us)
        for claim in claims:
            lease = self._leases.get(claim.request_id.int)
            if lease is not None:
                lease.expires_us = max(lease.expires_us, now_us + claim.ttl_us)

    async def register(
        self, held: Sequence[tuple[Claim, int]], settled: Sequence[tuple[Claim, Mapping[int, int]]]
    ) -> None:
        """Count, unchecked, leases (with the us of their admission) and settlements that were made elsewhere."""
        now_us = self._clock()
        for claim, admitted_us in held:
            if claim.request_id.int not in self._leases and not self._is_finished(claim.request_id.int):
                self._hold(claim, self._states(claim, now_us), now_us, min(admitted_us, now_us) // SECOND_US)
        for claim, amounts in settled:
            if claim.request_id.int not in self._leases and self._finish(claim.request_id.int, now_us):
                self._post(claim, amounts)

    async def unshipped(self, windows: Collection[BudgetWindow], limit: int) -> Unshipped:
        listed = list(islice(self._unshipped.items(), limit))
        complete = len(listed) == len(self._unshipped)
        settled = {
            uuid_of(request_id): {BudgetWindow(*name): nano for name, nano in amounts.items()}
            for request_id, amounts in listed
        }
        if not complete:  # others the next time: these could be such as never get a row
            for request_id, amounts in listed:
                del self._unshipped[request_id]
                self._unshipped[request_id] = amounts
        versions = {}
        for window in windows:
            budget = self._budgets.get((window.budget_id, window.window))
            versions[window] = budget.version if budget else 0
        return Unshipped(settled, versions, complete)

    async def reconcile(self, bases: Mapping[BudgetWindow, Base], shipped: Collection[UUID]) -> bool:
        budgets = {}
        for window, base in bases.items():
            budget = self._budgets.get((window.budget_id, window.window)) or BudgetSum(window.bounds()[1])
            if budget.version != base.version:
                return False
            budgets[window.budget_id, window.window] = budget
        for window, base in bases.items():
            budget = budgets[window.budget_id, window.window]
            budget.spent += base.nano - budget.base
            budget.base = base.nano
            budget.version += 1
        for request_id in shipped:
            for name, nano in self._unshipped.pop(request_id.int, {}).items():
                if name in budgets:
                    budgets[name].spent -= nano
                elif name in self._budgets:
                    self._budgets[name].base += nano
        self._budgets.update(budgets)
        self._forget_past_periods()
        return True

    async def view(self, scope: str, windows: Sequence[BudgetWindow]) -> View:
        now_us = self._clock()
        self._expire(now_us)
        state = self._scopes.get(scope) or ScopeState()
        state.slide(now_us // SECOND_US)
        states = {}
        for window in windows:
            budget = self._budgets.get((window.budget_id, window.window))
            states[window] = BudgetState(budget.version > 0, budget.spent, budget.reserved) if budget else BudgetState()
        return View(state.counters(now_us), states)

    def base_nano(self, window: BudgetWindow) -> int | None:
        """The database's sum as last reconciled; None when the period was never seeded."""
        budget = self._budgets.get((window.budget_id, window.window))
        return budget.base if budget and budget.version else None

    def _states(self, claim: Claim, now_us: int) -> list[ScopeState]:
        """The scopes of a claim, slid to now."""
        bucket = now_us // SECOND_US
        states = []
        for scope in claim.scopes:
            state = self._scopes.get(scope.name)
            if state is None:
                state = self._scopes[scope.name] = ScopeState()
            state.slide(bucket)
            states.append(state)
        return states

    def _take(self, claim: Claim, states: list[ScopeState], now_us: int) -> Answer:
        """Check everything, then write everything."""
        blocked = self._check_budgets(claim.charges, states, now_us, _NOTHING) or check_scopes(claim, states, now_us)
        if blocked is not None:
            return blocked
        self._hold(claim, states, now_us, now_us // SECOND_US)
        return Granted(tuple([state.counters(now_us) for state in states]))

    def _hold(self, claim: Claim, states: list[ScopeState], now_us: int, bucket: int) -> None:
        held = [
            HeldInScope(state, scope.limits, claim.tokens, bucket)
            for scope, state in zip(claim.scopes, states, strict=True)
        ]
        self._reserve(claim.charges)
        expires_us = now_us + claim.ttl_us
        self._leases[claim.request_id.int] = HeldLease(held, claim.charges, expires_us)
        if len(self._expiries) > len(self._leases) + ENDED_MAX:
            self._expiries = [(lease.expires_us, request_id) for request_id, lease in self._leases.items()]
            heapify(self._expiries)
        else:
            heappush(self._expiries, (expires_us, claim.request_id.int))

    def _post(self, claim: Claim, amounts: Mapping[int, int]) -> None:
        """Count what was spent on top of the bases, once per request."""
        if claim.request_id.int in self._unshipped:
            return
        posted = {}
        for charge in claim.charges:
            nano = amounts.get(charge.budget_id, 0)
            if nano:
                posted[charge.budget_id, charge.window] = nano
                self._budget(charge).spent += nano
        if posted:
            self._unshipped[claim.request_id.int] = posted

    def _check_budgets(
        self, charges: Sequence[Charge], states: list[ScopeState], now_us: int, own: Mapping[tuple[int, str], int]
    ) -> Unseeded | Refused | None:
        """`own` is what the same request holds already and would give back."""
        unseeded: list[BudgetWindow] | None = None
        blocked: Refused | None = None
        for charge in charges:
            budget = self._budgets.get((charge.budget_id, charge.window))
            if budget is None or budget.version == 0:
                unseeded = [*(unseeded or ()), BudgetWindow(charge.budget_id, charge.window)]
                continue
            if not charge.hard or blocked is not None:
                continue
            available = charge.limit_nano - budget.spent - budget.reserved
            if own:
                available += own.get((charge.budget_id, charge.window), 0)
            if charge.amount_nano > max(0, available):  # what is free has room beside any debt
                counters = tuple([state.counters(now_us) for state in states])
                blocked = Refused("budget", counters, 0, 0, charge.budget_id, available)
        return Unseeded(tuple(unseeded)) if unseeded else blocked

    def _reserve(self, charges: Sequence[Charge]) -> None:
        for charge in charges:
            (
                self._budgets.get((charge.budget_id, charge.window)) or self._budget(charge)
            ).reserved += charge.amount_nano

    def _give_back(self, charges: Sequence[Charge]) -> None:
        for charge in charges:
            (
                self._budgets.get((charge.budget_id, charge.window)) or self._budget(charge)
            ).reserved -= charge.amount_nano

    def _budget(self, charge: Charge) -> BudgetSum:
        budget = self._budgets.get((charge.budget_id, charge.window))
        if budget is None:
            budget = self._budgets[charge.budget_id, charge.window] = BudgetSum(charge.ends_us)
        return budget

    def _finish(self, request_id: int, now_us: int) -> bool:
        """Remember that the request is over; False when it was already."""
        if self._is_finished(request_id):
            return False
        if len(self._finished) >= REMEMBERED_LEAST or now_us - self._finished_since_us >= REMEMBERED_US:
            self._finished_before, self._finished, self._finished_since_us = self._finished, set(), now_us
        self._finished.add(request_id)
        return True

    def _is_finished(self, request_id: int) -> bool:
        return request_id in self._finished or request_id in self._finished_before

    def _expire(self, now_us: int) -> None:
        """End the leases whose holders have not renewed them; what they counted in the minute stays."""
        expiries = self._expiries
        while expiries and expiries[0][0] <= now_us:
            _, request_id = heappop(expiries)
            lease = self._leases.get(request_id)
            if lease is None:
                continue
            if lease.expires_us > now_us:
                heappush(expiries, (lease.expires_us, request_id))
                continue
            del self._leases[request_id]
            self._give_back(lease.charges)
            for held in lease.held:
                held.state.parallel -= 1

    def _forget_past_periods(self) -> None:
        """Drop the budget periods that ended a day ago and hold no reservation."""
        now_us = self._clock()
        for name, budget in list(self._budgets.items()):
            if budget.ends_us is not None and budget.ends_us + PAST_PERIOD_US <= now_us and not budget.reserved:
                del self._budgets[name]
