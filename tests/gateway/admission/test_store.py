"""What both stores promise, one by one, on a simulated clock."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admission.claims import Base, BudgetState, BudgetWindow, Claim, Counters, Granted, Refused, Scope, Unseeded
from gateway.admission.limits import Limits
from gateway.admission.store import AlreadyFinished, LimitStore
from tests.gateway.admission.helpers import (
    WINDOW,
    Clock,
    charge,
    claim,
    granted,
    refused,
    running,
    seeded,
    spent_and_reserved,
)

DAY = BudgetWindow(1, WINDOW)


async def test_rule_11_parallel_calls_against_room_for_137_admit_exactly_137(store: LimitStore) -> None:
    await seeded(store, 1)
    cost = 1_234_567_891
    claims = [claim(charge(cost, 137 * cost + cost - 1)) for _ in range(1000)]
    answers = await asyncio.gather(*(store.admit(each) for each in claims))
    admitted = [each for each, answer in zip(claims, answers, strict=True) if isinstance(answer, Granted)]
    assert len(admitted) == 137
    assert await spent_and_reserved(store) == (0, 137 * cost)
    await asyncio.gather(*(store.settle(each, 0, {1: cost}) for each in admitted))
    assert await spent_and_reserved(store) == (137 * cost, 0)


async def test_rule_11_parallel_calls_against_137_requests_a_minute_admit_exactly_137(store: LimitStore) -> None:
    answers = await asyncio.gather(*(store.admit(claim(requests=137)) for _ in range(1000)))
    assert sum(isinstance(answer, Granted) for answer in answers) == 137


async def test_rule_11_parallel_calls_against_137_slots_admit_exactly_137(store: LimitStore) -> None:
    answers = await asyncio.gather(*(store.admit(claim(parallel=137)) for _ in range(1000)))
    assert sum(isinstance(answer, Granted) for answer in answers) == 137


async def test_rule_12_a_refused_request_consumes_nothing_from_any_limiter(store: LimitStore) -> None:
    await seeded(store, 1, 2)
    answer = await store.admit(
        claim(charge(5, 100), charge(5, 4, budget_id=2), requests=9, tokens_limit=99, parallel=9, tokens=7)
    )
    assert refused(answer).by == "budget"
    assert refused(answer).budget_id == 2
    assert refused(answer).available_nano == 4
    for each in (1, 2):
        assert await spent_and_reserved(store, each) == (0, 0)
    assert (await store.view("key_a", [])).counters == Counters()


async def test_rule_08_zero_means_nothing_allowed_and_none_means_no_limit(store: LimitStore) -> None:
    await seeded(store, 1)
    assert refused(await store.admit(claim(requests=0))).retry_after_us is None
    assert refused(await store.admit(claim(tokens_limit=0, tokens=1))).retry_after_us is None
    assert refused(await store.admit(claim(parallel=0))).retry_after_us is None
    assert refused(await store.admit(claim(charge(1, 0)))).available_nano == 0
    granted(await store.admit(claim(tokens=10**9)))
    granted(await store.admit(claim(charge(0, 0))))


async def test_rule_15_a_retried_command_is_not_counted_twice(store: LimitStore) -> None:
    await seeded(store, 1)
    request = claim(charge(100, 1000), requests=5, tokens_limit=1000, parallel=5, tokens=40)
    first = granted(await store.admit(request))
    assert granted(await store.admit(request)) == first
    assert await spent_and_reserved(store) == (0, 100)
    assert await store.settle(request, 30, {1: 70})
    assert not await store.settle(request, 30, {1: 70})
    assert not await store.release(request)
    assert await spent_and_reserved(store) == (70, 0)
    counters = (await store.view("key_a", [])).counters
    assert (counters.requests_used, counters.tokens_used, counters.parallel) == (1, 30, 0)


async def test_a_request_that_ended_is_not_admitted_by_a_late_command(store: LimitStore) -> None:
    await seeded(store, 1)
    request = claim(charge(100, 1000))
    assert await store.release(request)
    with pytest.raises(AlreadyFinished):
        await store.admit(request)
    with pytest.raises(AlreadyFinished):
        await store.amend(request, 0, request.charges)
    assert await spent_and_reserved(store) == (0, 0)


async def test_release_gives_everything_back_and_settle_keeps_the_place_in_the_minute(store: LimitStore) -> None:
    await seeded(store, 1)
    for keep in (False, True):
        request = claim(charge(100, 1000), requests=1, tokens_limit=50, parallel=1, tokens=50)
        granted(await store.admit(request))
        await (store.settle(request, 0, {}) if keep else store.release(request))
        assert await running(store) == 0
    assert refused(await store.admit(claim(requests=1))).by == "requests"
    granted(await store.admit(claim(tokens_limit=50, tokens=50)))


async def test_rule_14_tokens_count_by_estimate_and_are_corrected_after(store: LimitStore) -> None:
    request = claim(tokens_limit=100, tokens=80)
    granted(await store.admit(request))
    assert refused(await store.admit(claim(tokens_limit=100, tokens=21))).by == "tokens"
    await store.settle(request, 15, {})
    assert granted(await store.admit(claim(tokens_limit=100, tokens=85))).counters[0].tokens_used == 100


async def test_rule_14_a_request_that_used_more_than_estimated_is_counted_with_what_it_used(store: LimitStore) -> None:
    request = claim(tokens_limit=100, tokens=10)
    granted(await store.admit(request))
    await store.settle(request, 130, {})
    assert (await store.view("key_a", [])).counters.tokens_used == 130
    assert refused(await store.admit(claim(tokens_limit=100, tokens=1))).by == "tokens"


async def test_a_correction_after_the_minute_gives_nothing_back_twice(store: LimitStore, clock: Clock) -> None:
    long = claim(tokens_limit=100, tokens=100, ttl_s=600)
    granted(await store.admit(long))
    clock.advance(62)
    granted(await store.admit(claim(tokens_limit=100, tokens=100)))
    await store.settle(long, 1, {})
    assert (await store.view("key_a", [])).counters.tokens_used == 100


async def test_waiting_as_long_as_retry_after_says_succeeds_and_a_microsecond_less_does_not(
    store: LimitStore, clock: Clock
) -> None:
    for advance in (0.0, 3.25, 0.5):
        clock.advance(advance)
        granted(await store.admit(claim(requests=3)))
    wait_us = refused(await store.admit(claim(requests=3))).retry_after_us
    assert wait_us is not None
    assert 60_000_000 - 3_750_000 < wait_us <= 61_000_000 - 3_750_000
    clock.now_us += wait_us - 1
    again = refused(await store.admit(claim(requests=3)))
    assert again.retry_after_us == 1
    clock.now_us += 1
    granted(await store.admit(claim(requests=3)))


async def test_retry_after_is_the_longest_of_all_waits(store: LimitStore, clock: Clock) -> None:
    granted(await store.admit(claim(requests=2, tokens_limit=100, tokens=10)))
    clock.advance(30)
    granted(await store.admit(claim(requests=2, tokens_limit=100, tokens=90)))
    answer = refused(await store.admit(claim(requests=2, tokens_limit=100, tokens=50)))
    assert answer.by == "requests"
    assert answer.retry_after_us == 61_000_000


async def test_more_tokens_than_the_limit_never_fit(store: LimitStore) -> None:
    assert refused(await store.admit(claim(tokens_limit=100, tokens=101))).retry_after_us is None


async def test_a_lease_expires_when_nobody_renews_it(store: LimitStore, clock: Clock) -> None:
    await seeded(store, 1)
    request = claim(charge(1000, 1000), parallel=1, ttl_s=60)
    granted(await store.admit(request))
    clock.advance(59)
    assert refused(await store.admit(claim(parallel=1))).by == "parallel"
    await store.renew([request])
    clock.advance(59)
    assert refused(await store.admit(claim(charge(1, 1000)))).by == "budget"
    clock.advance(1)
    granted(await store.admit(claim(charge(1000, 1000), parallel=1)))
    assert await spent_and_reserved(store) == (0, 1000)


async def test_what_a_request_spent_counts_although_its_lease_had_expired(store: LimitStore, clock: Clock) -> None:
    await seeded(store, 1)
    request = claim(charge(1000, 5000), parallel=1, ttl_s=60)
    granted(await store.admit(request))
    clock.advance(61)
    assert await running(store) == 0
    await store.renew([request])
    assert await running(store) == 0
    assert await store.settle(request, 5, {1: 700})
    assert await spent_and_reserved(store) == (700, 0)
    assert await running(store) == 0


async def test_a_soft_budget_counts_and_never_refuses(store: LimitStore) -> None:
    await seeded(store, 1)
    granted(await store.admit(claim(charge(500, 100, hard=False))))
    assert await spent_and_reserved(store) == (0, 500)


async def test_a_budget_period_is_unknown_until_it_was_reconciled(store: LimitStore) -> None:
    await seeded(store, 1)
    answer = await store.admit(claim(charge(1, 10), charge(1, 10, budget_id=2)))
    assert answer == Unseeded((BudgetWindow(2, WINDOW),))
    assert await spent_and_reserved(store) == (0, 0)


async def test_periods_of_one_budget_are_counted_apart(store: LimitStore) -> None:
    tomorrow = "1790035200000000-1790121600000000"
    await seeded(store, 1)
    await seeded(store, 1, window=tomorrow)
    granted(await store.admit(claim(charge(100, 100))))
    granted(await store.admit(claim(charge(100, 100, window=tomorrow))))
    assert refused(await store.admit(claim(charge(1, 100)))).by == "budget"


async def test_amounts_are_exact_to_the_nano_beyond_two_to_the_53(store: LimitStore) -> None:
    await seeded(store, 1, spent=9_100_000_000_123_456_789)
    limit = 9_200_000_000_000_000_000
    room = limit - 9_100_000_000_123_456_789
    assert refused(await store.admit(claim(charge(room + 1, limit)))).available_nano == room
    request = claim(charge(room, limit))
    granted(await store.admit(request))
    assert refused(await store.admit(claim(charge(1, limit)))).available_nano == 0
    await store.settle(request, 0, {1: room - 1})
    assert await spent_and_reserved(store) == (limit - 1, 0)
    granted(await store.admit(claim(charge(1, limit))))


async def test_a_negative_base_after_a_correction_gives_room(store: LimitStore) -> None:
    await seeded(store, 1, spent=-1_500_000_001)
    request = claim(charge(2_500_000_001, 1_000_000_000))
    granted(await store.admit(request))
    await store.settle(request, 0, {1: 2_500_000_000})
    assert await spent_and_reserved(store) == (999_999_999, 0)


async def test_reconciling_moves_settlements_into_the_base_without_a_gap(store: LimitStore) -> None:
    await seeded(store, 1, 2)
    requests = [claim(charge(10, 1000), charge(20, 1000, budget_id=2)) for _ in range(3)]
    for request in requests:
        granted(await store.admit(request))
        await store.settle(request, 0, {1: 7, 2: 9})
    versions_alone = await store.unshipped([DAY], 0)
    assert (versions_alone.settled, versions_alone.complete) == ({}, False)
    listed = await store.unshipped([DAY, BudgetWindow(2, WINDOW)], 100)
    assert listed.complete
    assert listed.settled == {each.request_id: {DAY: 7, BudgetWindow(2, WINDOW): 9} for each in requests}
    assert listed.versions == {DAY: 1, BudgetWindow(2, WINDOW): 1}
    done = [requests[0].request_id, requests[2].request_id]
    assert await store.reconcile({DAY: Base(14, 1), BudgetWindow(2, WINDOW): Base(18, 1)}, done)
    assert await spent_and_reserved(store, 1) == (21, 0)
    assert await spent_and_reserved(store, 2) == (27, 0)
    assert set((await store.unshipped([], 100)).settled) == {requests[1].request_id}
    assert await store.reconcile({DAY: Base(20, 2)}, [requests[1].request_id])
    assert await spent_and_reserved(store, 1) == (20, 0)
    assert await spent_and_reserved(store, 2) == (27, 0)
    assert (await store.unshipped([], 100)).settled == {}


async def test_a_reconciliation_overtaken_by_another_changes_nothing(store: LimitStore) -> None:
    await seeded(store, 1, 2)
    request = claim(charge(10, 1000))
    granted(await store.admit(request))
    await store.settle(request, 0, {1: 7})
    assert await store.reconcile({DAY: Base(100, 1)}, [])
    assert not await store.reconcile({DAY: Base(7, 1), BudgetWindow(2, WINDOW): Base(7, 1)}, [request.request_id])
    assert await spent_and_reserved(store, 1) == (107, 0)
    assert await spent_and_reserved(store, 2) == (0, 0)


async def test_amending_replaces_the_reservation_or_leaves_it(store: LimitStore) -> None:
    await seeded(store, 1, 2)
    request = claim(charge(100, 150), parallel=1, tokens_limit=100, tokens=50)
    granted(await store.admit(request))
    assert refused(await store.amend(request, 50, [charge(151, 150)])).available_nano == 150
    assert refused(await store.amend(request, 101, request.charges)).by == "tokens"
    assert await spent_and_reserved(store) == (0, 100)
    granted(await store.amend(request, 60, [charge(150, 150), charge(5, 10, budget_id=2)]))
    assert await spent_and_reserved(store, 1) == (0, 150)
    assert await spent_and_reserved(store, 2) == (0, 5)
    granted(await store.amend(request, 10, [charge(5, 10, budget_id=2)]))
    assert await spent_and_reserved(store, 1) == (0, 0)
    counters = (await store.view("key_a", [])).counters
    assert (counters.tokens_used, counters.parallel) == (10, 1)
    assert await store.settle(claim(charge(5, 10, budget_id=2), request_id=request.request_id), 12, {2: 4})
    assert await spent_and_reserved(store, 2) == (4, 0)
    assert (await store.view("key_a", [])).counters.tokens_used == 12


async def test_every_scope_of_a_claim_must_have_room(store: LimitStore) -> None:
    def of(model_requests: int) -> Claim:
        key, model = Scope("key_a", Limits(10)), Scope("key_a/large", Limits(model_requests))
        return Claim(claim().request_id, (key, model), 0, (), 60_000_000)

    granted(await store.admit(of(1)))
    answer = refused(await store.admit(of(1)))
    assert (answer.by, answer.scope) == ("requests", 1)
    assert [each.requests_used for each in answer.counters] == [1, 1]


async def test_registered_leases_and_settlements_count_once_and_unchecked(store: LimitStore, clock: Clock) -> None:
    held = claim(charge(100, 1), requests=1, tokens_limit=1, parallel=0, tokens=40)
    done = claim(charge(100, 1))
    for _ in range(2):
        await store.register([(held, clock())], [(done, {1: 30})])  # type: ignore[attr-defined]
    view = await store.view("key_a", [DAY])
    assert view.budgets[DAY] == BudgetState(False, 30, 100)
    assert (view.counters.requests_used, view.counters.tokens_used, view.counters.parallel) == (1, 40, 1)
    assert isinstance(await store.admit(claim(charge(1, 1000))), Unseeded)
    assert await store.reconcile({DAY: Base(500, 0)}, [])
    assert await store.settle(held, 4, {1: 90})
    assert await spent_and_reserved(store) == (620, 0)


async def test_what_was_shipped_is_not_counted_again_by_registering_it(store: LimitStore) -> None:
    await seeded(store, 1)
    request = claim(charge(100, 1000))
    granted(await store.admit(request))
    await store.settle(request, 0, {1: 30})
    assert await store.reconcile({DAY: Base(30, 1)}, [request.request_id])
    await store.register([], [(request, {1: 30})])  # type: ignore[attr-defined]
    assert await spent_and_reserved(store) == (30, 0)


async def test_a_settlement_on_its_way_while_its_lease_is_known_is_posted_by_its_own_end(store: LimitStore) -> None:
    await seeded(store, 1)
    request = claim(charge(100, 1000))
    granted(await store.admit(request))
    await store.register([], [(request, {1: 30})])  # type: ignore[attr-defined]
    assert await spent_and_reserved(store) == (0, 100)
    assert await store.settle(request, 0, {1: 30})
    assert await spent_and_reserved(store) == (30, 0)


async def test_a_settlement_that_was_registered_and_shipped_is_not_posted_by_its_late_end(store: LimitStore) -> None:
    await seeded(store, 1)
    request = claim(charge(100, 1000))
    await store.register([], [(request, {1: 30})])  # type: ignore[attr-defined]
    assert await store.reconcile({DAY: Base(30, 1)}, [request.request_id])
    assert not await store.settle(request, 0, {1: 30})
    assert await spent_and_reserved(store) == (30, 0)


async def test_reset_says_when_the_window_is_empty(store: LimitStore, clock: Clock) -> None:
    first = granted(await store.admit(claim(requests=5, tokens_limit=100, tokens=3))).counters[0]
    assert (first.requests_reset_us, first.tokens_reset_us) == (61_000_000, 61_000_000)
    clock.advance(10.25)
    assert (await store.view("key_a", [])).counters.requests_reset_us == 50_750_000
    clock.now_us += 50_750_000
    assert (await store.view("key_a", [])).counters == Counters()


async def test_a_clock_that_steps_back_neither_opens_nor_shuts_a_window_for_long(
    store: LimitStore, clock: Clock
) -> None:
    granted(await store.admit(claim(requests=1)))
    clock.advance(-30)
    assert isinstance(await store.admit(claim(requests=1)), Refused)
    clock.advance(-3600)
    granted(await store.admit(claim(requests=1)))


async def test_what_costs_nothing_has_room_beside_any_debt(store: LimitStore) -> None:
    """An answer out of the cache, or a model priced zero on purpose, is nobody's to refuse; a nano is."""
    await seeded(store, 1, spent=1_000)
    granted(await store.admit(free := claim(charge(0, 900))))
    assert refused(await store.admit(claim(charge(1, 900)))).available_nano == -100
    assert await store.settle(free, 0, {})
    granted(await store.admit(claim(charge(0, 0))))
    assert refused(await store.admit(claim(charge(0, 900), requests=0))).by == "requests"


async def test_settlements_that_never_get_a_row_do_not_keep_the_others_from_theirs(store: LimitStore) -> None:
    """A journal that is lost, or letters that are dead, leave such behind: however many, the rest moves on."""
    await seeded(store, 1)
    asked = [claim(charge(10, 10_000)) for _ in range(60)]
    for each in asked:
        granted(await store.admit(each))
        await store.settle(each, 0, {1: 10})
    recorded = {each.request_id for each in asked[20:]}
    for _ in range(200):
        listed = await store.unshipped([], 15)
        assert len(listed.settled) <= 15
        assert await store.reconcile({}, recorded & listed.settled.keys())
    left = await store.unshipped([], 100)
    assert (set(left.settled), left.complete) == ({each.request_id for each in asked[:20]}, True)
    assert await spent_and_reserved(store) == (600, 0)
