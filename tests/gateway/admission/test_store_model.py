"""Any sequence of operations on a store leaves what a simple oracle says, and conserves: hypothesis tries to disagree."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from gateway.admission.claims import Base, BudgetWindow, Charge, Claim, Granted, Refused, Scope
from gateway.admission.limits import Limits
from gateway.admission.memory import REMEMBERED_US, MemoryStore
from gateway.admission.store import AlreadyFinished
from gateway.admission.valkey import ValkeyStore
from gateway.ids import new_request_id
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.admission.conftest import unique_prefix
from tests.gateway.admission.helpers import SECOND_US, WINDOW, Clock

T = TypeVar("T")

LIMITS = {"key_a": Limits(6, 300, 3), "key_b": Limits(None, 200, None), "key_c": Limits(4, None, 2)}
BUDGETS = {1: 5_000_000_000, 2: 3_000_000_001}
NANO = st.one_of(st.integers(0, 30), st.integers(0, 2_500_000_000))


@dataclass
class Event:
    """Something counted in a scope's minute: it stays until its whole second has left."""

    bucket: int
    amount: int


@dataclass
class Held:
    claim: Claim
    expires_us: int
    request: Event | None
    tokens: Event | None


@dataclass
class Oracle:
    """The rules again, as slowly and plainly as possible."""

    clock: Clock
    requests: dict[str, list[Event]] = field(default_factory=lambda: {name: [] for name in LIMITS})
    tokens: dict[str, list[Event]] = field(default_factory=lambda: {name: [] for name in LIMITS})
    leases: dict[UUID, Held] = field(default_factory=dict)
    finished: dict[UUID, int] = field(default_factory=dict)
    database: dict[int, int] = field(default_factory=lambda: dict.fromkeys(BUDGETS, 0))
    unshipped: dict[UUID, dict[int, int]] = field(default_factory=dict)

    def forgotten(self, request_id: UUID) -> bool:
        """Whether it ended so long ago that a store need not know it any more."""
        ended_us = self.finished.get(request_id)
        return ended_us is not None and ended_us + REMEMBERED_US <= self.clock.now_us

    def used(self, events: list[Event]) -> int:
        now = self.clock.now_us // SECOND_US
        return sum(event.amount for event in events if event.bucket > now - 61)

    def expire(self) -> None:
        self.leases = {key: held for key, held in self.leases.items() if held.expires_us > self.clock.now_us}

    def running(self, name: str) -> int:
        return sum(held.claim.scopes[0].name == name for held in self.leases.values())

    def spent(self, budget_id: int) -> int:
        return self.database[budget_id] + sum(amounts.get(budget_id, 0) for amounts in self.unshipped.values())

    def reserved(self, budget_id: int) -> int:
        charges = [charge for held in self.leases.values() for charge in held.claim.charges]
        return sum(charge.amount_nano for charge in charges if charge.budget_id == budget_id)

    def room(self, claim: Claim, without: UUID | None = None) -> str | None:
        """What refuses `claim`; None when everything has room."""
        for charge in claim.charges:
            own = self.leases[without].claim.charges if without else ()
            back = sum(each.amount_nano for each in own if each.budget_id == charge.budget_id)
            taken = self.spent(charge.budget_id) + self.reserved(charge.budget_id) - back
            if charge.hard and charge.amount_nano and taken + charge.amount_nano > charge.limit_nano:
                return "budget"
        if without:
            return None
        scope = claim.scopes[0]
        limits = scope.limits
        if (
            limits.requests_per_minute is not None
            and self.used(self.requests[scope.name]) >= limits.requests_per_minute
        ):
            return "requests"
        used, most = self.used(self.tokens[scope.name]), limits.tokens_per_minute
        if most is not None and used + claim.tokens > most:
            return "tokens"
        if limits.max_parallel is not None and self.running(scope.name) >= limits.max_parallel:
            return "parallel"
        return None

    def take(self, claim: Claim) -> None:
        scope, now = claim.scopes[0], self.clock.now_us // SECOND_US
        request = tokens = None
        if scope.limits.requests_per_minute is not None:
            request = Event(now, 1)
            self.requests[scope.name].append(request)
        if scope.limits.tokens_per_minute is not None:
            tokens = Event(now, claim.tokens)
            self.tokens[scope.name].append(tokens)
        self.leases[claim.request_id] = Held(claim, self.clock.now_us + claim.ttl_us, request, tokens)

    def correct(self, held: Held, tokens: int) -> None:
        if held.tokens is None:
            return
        now = self.clock.now_us // SECOND_US
        if held.tokens.bucket > now - 61:
            held.tokens.amount = tokens
        elif tokens > held.tokens.amount:
            self.tokens[held.claim.scopes[0].name].append(Event(now, tokens - held.tokens.amount))


class StoreMachine(RuleBasedStateMachine):
    """`make` is set by the test: it gives the store under test."""

    make: Any = None
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.store: MemoryStore | ValkeyStore = type(self).make(self.clock)
        self.oracle = Oracle(self.clock)
        self.versions = dict.fromkeys(BUDGETS, 1)

    def teardown(self) -> None:
        self.run(self.store.stop())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.run(self.store.start())
        assert self.run(self.store.reconcile({BudgetWindow(each, WINDOW): Base(0, 0) for each in BUDGETS}, []))

    @rule(
        target=claims,
        key=st.sampled_from(sorted(LIMITS)),
        tokens=st.integers(0, 150),
        first=st.one_of(st.just(0), NANO),
        second=st.one_of(st.none(), NANO),
        hard=st.booleans(),
        ttl_s=st.sampled_from([20, 60, 300]),
    )
    def admit(self, key: str, tokens: int, first: int, second: int | None, hard: bool, ttl_s: int) -> Any:
        charges = [Charge(1, first, BUDGETS[1], WINDOW, None, hard)]
        if second is not None:
            charges.append(Charge(2, second, BUDGETS[2], WINDOW, None, True))
        claim = Claim(new_request_id(), (Scope(key, LIMITS[key]),), tokens, tuple(charges), ttl_s * SECOND_US)
        self.oracle.expire()
        reason = self.oracle.room(claim)
        answer = self.run(self.store.admit(claim))
        if reason is None:
            assert isinstance(answer, Granted)
            self.oracle.take(claim)
            return claim
        assert isinstance(answer, Refused)
        assert answer.by == reason
        return multiple()

    @rule(claim=claims)
    def admit_again(self, claim: Claim) -> None:
        self.oracle.expire()
        if self.oracle.forgotten(claim.request_id):
            return
        if claim.request_id in self.oracle.finished:
            with pytest.raises(AlreadyFinished):
                self.run(self.store.admit(claim))
        elif claim.request_id in self.oracle.leases:
            assert isinstance(self.run(self.store.admit(claim)), Granted)

    @rule(claim=claims, first=NANO)
    def amend(self, claim: Claim, first: int) -> None:
        self.oracle.expire()
        held = self.oracle.leases.get(claim.request_id)
        if held is None:
            return
        charges = tuple(
            Charge(1, first, BUDGETS[1], WINDOW, None, True) if each.budget_id == 1 else each
            for each in held.claim.charges
        )
        asked = Claim(claim.request_id, claim.scopes, claim.tokens, charges, claim.ttl_us)
        reason = self.oracle.room(asked, without=claim.request_id)
        answer = self.run(self.store.amend(held.claim, claim.tokens, charges))
        assert isinstance(answer, Refused if reason else Granted)
        if not reason:
            held.claim = asked

    @rule(claim=claims, tokens=st.integers(0, 300), share=st.sampled_from([0, 1, 50, 100]))
    def settle(self, claim: Claim, tokens: int, share: int) -> None:
        self.oracle.expire()
        if self.oracle.forgotten(claim.request_id):
            return
        amounts = {each.budget_id: each.amount_nano * share // 100 for each in claim.charges}
        first = claim.request_id not in self.oracle.finished
        assert self.run(self.store.settle(claim, tokens, amounts)) == first
        if not first:
            return
        self.oracle.finished[claim.request_id] = self.clock.now_us
        held = self.oracle.leases.pop(claim.request_id, None)
        if held is not None:
            self.oracle.correct(held, tokens)
        if any(amounts.values()):
            self.oracle.unshipped[claim.request_id] = amounts

    @rule(claim=consumes(claims))
    def release(self, claim: Claim) -> None:
        self.oracle.expire()
        if self.oracle.forgotten(claim.request_id):
            return
        first = claim.request_id not in self.oracle.finished
        assert self.run(self.store.release(claim)) == first
        self.oracle.finished[claim.request_id] = self.clock.now_us
        held = self.oracle.leases.pop(claim.request_id, None)
        if held is not None:
            self.oracle.correct(held, 0)
            if held.request is not None:
                held.request.amount = 0

    @rule(claim=claims)
    def renew(self, claim: Claim) -> None:
        self.oracle.expire()
        self.run(self.store.renew([claim]))
        held = self.oracle.leases.get(claim.request_id)
        if held is not None:
            held.expires_us = max(held.expires_us, self.clock.now_us + claim.ttl_us)

    @rule(correction=st.integers(-100, 2_000_000_000), share=st.integers(0, 3), which=st.sampled_from([(1, 2), (1,)]))
    def reconcile(self, correction: int, share: int, which: tuple[int, ...]) -> None:
        """The database has some of the settlements by now, and a correction besides; not every period gets a new base."""
        shipped = [key for index, key in enumerate(list(self.oracle.unshipped)) if index % 3 < share]
        self.oracle.database[1] += correction
        for key in shipped:
            for budget_id, nano in self.oracle.unshipped.pop(key).items():
                self.oracle.database[budget_id] += nano
        bases = {BudgetWindow(each, WINDOW): Base(self.oracle.database[each], self.versions[each]) for each in which}
        assert self.run(self.store.reconcile(bases, shipped))
        stale = {window: Base(base.nano + 1, base.version) for window, base in bases.items()}
        assert not self.run(self.store.reconcile(stale, []))
        for each in which:
            self.versions[each] += 1

    @rule(seconds=st.one_of(st.floats(0, 2), st.integers(2, 70)))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def figures_agree(self) -> None:
        self.oracle.expire()
        windows = [BudgetWindow(each, WINDOW) for each in BUDGETS]
        for name in LIMITS:
            view = self.run(self.store.view(name, windows))
            assert view.counters.requests_used == self.oracle.used(self.oracle.requests[name])
            assert view.counters.tokens_used == self.oracle.used(self.oracle.tokens[name])
            assert view.counters.parallel == self.oracle.running(name)
        for window in windows:
            state = view.budgets[window]
            assert state.spent_nano == self.oracle.spent(window.budget_id)
            assert state.reserved_nano == self.oracle.reserved(window.budget_id)


def check(make: Any, examples: int) -> None:
    class Machine(StoreMachine):
        pass

    Machine.make = staticmethod(make)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_the_memory_store_agrees_with_the_oracle() -> None:
    check(MemoryStore, 120)


def test_the_valkey_store_agrees_with_the_oracle(valkey_server: ValkeyServer) -> None:
    def make(clock: Clock) -> ValkeyStore:
        return ValkeyStore(valkey_server.url, prefix=unique_prefix(), heal_us=0, clock=clock, timeout_s=5)

    check(make, 40)
