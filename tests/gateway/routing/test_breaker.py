"""Laws of the circuit breaker and of the retry budget, on a simulated clock."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.breaker import CONSECUTIVE, COOLDOWN_S, MOST_COOLDOWN_S, PROBE_LIMIT_S, WINDOW, Breaker, State
from gateway.routing.retries import (
    BURST,
    BURST_OF_A_KEY,
    MOST_PAUSE_S,
    MOST_RETRY_AFTER_S,
    PER_SECOND,
    SHARE,
    RetryBudget,
    pause_s,
)


def tripped(now_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(CONSECUTIVE):
        breaker.failure(now_s)
    return breaker


def test_consecutive_failures_open_the_circuit() -> None:
    breaker = Breaker()
    for _ in range(CONSECUTIVE - 1):
        breaker.failure(0.0)
    assert breaker.state(0.0) is State.CLOSED
    breaker.failure(0.0)
    assert breaker.state(0.0) is State.OPEN and not breaker.allows(0.0)


def test_half_of_the_last_calls_failing_opens_it_too() -> None:
    breaker = Breaker()
    for _ in range(WINDOW // 2):
        breaker.success()
        breaker.failure(0.0)
    assert breaker.state(0.0) is State.OPEN


def test_after_the_wait_one_probe_goes_out_at_a_time() -> None:
    breaker = tripped()
    assert breaker.state(COOLDOWN_S) is State.HALF_OPEN and breaker.allows(COOLDOWN_S)
    breaker.begin(COOLDOWN_S)
    assert not breaker.allows(COOLDOWN_S + 1)
    breaker.success()
    assert breaker.state(COOLDOWN_S + 1) is State.CLOSED and breaker.allows(COOLDOWN_S + 1)


def test_a_failed_probe_doubles_the_wait_up_to_its_bound() -> None:
    breaker, now_s, wait_s = tripped(), 0.0, COOLDOWN_S
    for _ in range(8):
        now_s += breaker.opens_in_s(now_s)
        breaker.begin(now_s)
        breaker.failure(now_s)
        wait_s = min(wait_s * 2, MOST_COOLDOWN_S)
        assert breaker.opens_in_s(now_s) == wait_s


def test_a_probe_whose_caller_left_frees_the_place() -> None:
    breaker = tripped()
    breaker.begin(COOLDOWN_S)
    breaker.abandoned()
    assert breaker.allows(COOLDOWN_S)


def test_a_probe_that_never_reports_does_not_block_for_ever() -> None:
    breaker = tripped()
    breaker.begin(COOLDOWN_S)
    assert breaker.allows(COOLDOWN_S + PROBE_LIMIT_S + 1)


def test_retry_after_is_honoured_although_the_circuit_is_closed() -> None:
    breaker = Breaker()
    breaker.failure(0.0, 3.0)
    assert not breaker.allows(2.9) and breaker.allows(3.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=300))
def test_one_key_alone_never_takes_a_route_away_from_others(steps: list[tuple[bool, float]]) -> None:
    """Whatever it asks and however often, beside others' successes or without any."""
    breaker, now_s = Breaker(), 0.0
    for others_succeed, after_s in steps:
        now_s += after_s
        breaker.failure(now_s, key="absurd")
        if others_succeed:
            breaker.success()
        assert breaker.state(now_s) is State.CLOSED and breaker.allows(now_s, "others")


def test_what_two_keys_met_opens_the_circuit_for_all() -> None:
    for flood in (3, 4, 500):
        breaker = Breaker()
        for _ in range(flood):
            breaker.failure(0.0, key="a")
        breaker.failure(0.0, key="b")
        assert breaker.state(0.0) is State.CLOSED, "one failure of another key may be chance"
        breaker.failure(0.0, key="b")
        assert breaker.state(0.0) is State.OPEN and not breaker.allows(0.0, "c")


def test_half_of_what_two_keys_met_failing_opens_it_too() -> None:
    breaker = Breaker()
    for turn in range(WINDOW // 2):
        breaker.failure(0.0, key="ab"[turn % 2])
        assert breaker.state(0.0) is State.CLOSED
        breaker.success()
    breaker.failure(0.0, key="c")
    assert breaker.state(0.0) is State.OPEN


def test_a_key_that_meets_nothing_but_failures_is_kept_away_alone_and_comes_back() -> None:
    breaker = Breaker()
    for _ in range(CONSECUTIVE - 1):
        breaker.failure(0.0, key="a")
        assert breaker.allows(0.0, "a")
    breaker.failure(0.0, key="a")
    assert not breaker.allows(COOLDOWN_S - 0.1, "a") and breaker.allows(0.0, "b") and breaker.allows(COOLDOWN_S, "a")
    breaker.failure(COOLDOWN_S, key="a")
    assert not breaker.allows(COOLDOWN_S, "a")
    breaker.success()  # somebody else's: the route is well
    assert breaker.allows(COOLDOWN_S, "a")


def test_what_began_before_the_circuit_opened_does_not_lengthen_the_wait() -> None:
    breaker = tripped()
    for _ in range(10):
        breaker.failure(1.0, key="late")
    assert breaker.opens_in_s(0.0) == COOLDOWN_S


@given(st.lists(st.tuples(st.sampled_from(["ok", "bad", "left"]), st.floats(0, 10)), max_size=200))
def test_an_open_circuit_never_lets_a_call_through(steps: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(), 0.0
    for what, after_s in steps:
        now_s += after_s
        if breaker.state(now_s) is State.OPEN:
            assert not breaker.allows(now_s) and breaker.opens_in_s(now_s) > 0
            continue
        if not breaker.allows(now_s):
            continue
        breaker.begin(now_s)
        if what == "ok":
            breaker.success()
            assert breaker.allows(now_s)
        elif what == "bad":
            breaker.failure(now_s)
        else:
            breaker.abandoned()


STEPS = st.lists(st.tuples(st.floats(0, 5), st.integers(0, 5), st.sampled_from("abc")), min_size=1, max_size=300)


@given(STEPS)
def test_rule_23_retries_stay_within_their_budget(steps: list[tuple[float, int, str]]) -> None:
    budget, now_s, taken = RetryBudget(), 0.0, 0
    for requests, (after_s, wanted, key) in enumerate(steps, 1):
        now_s += after_s
        budget.request(now_s, key)
        taken += sum(budget.take(key) for _ in range(wanted))
        assert taken <= BURST + SHARE * requests + PER_SECOND * now_s


@given(STEPS)
def test_whatever_one_keys_requests_meet_retries_are_left_for_others(steps: list[tuple[float, int, str]]) -> None:
    """The others may retry as if they had half of the burst, and all that their own requests earn, to themselves."""
    budget, now_s, left = RetryBudget(), 0.0, BURST - BURST_OF_A_KEY
    for after_s, wanted, who in steps:
        now_s += after_s
        budget.request(now_s, "a" if who == "a" else "others")
        if who == "a":
            for _ in range(20):
                budget.take("a")
            continue
        left = min(BURST_OF_A_KEY, left + SHARE)
        for _ in range(min(wanted, int(left))):
            assert budget.take("others")
            left -= 1


def test_rule_23_a_pause_is_never_shorter_than_the_provider_asked_and_a_long_one_is_not_waited_for() -> None:
    jitter = random.Random(1)
    assert pause_s(1, 2.5, jitter) == 2.5
    assert pause_s(1, MOST_RETRY_AFTER_S + 1, jitter) is None
    for again in range(1, 12):
        pause = pause_s(again, None, jitter)
        assert pause is not None and 0.1 <= pause <= MOST_PAUSE_S
