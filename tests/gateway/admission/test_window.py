"""The sliding minute against a log of every event: never more than the limit in any 60 s, back at most 1 s late."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.window import BUCKETS, SECOND_US, SlidingWindow

MINUTE_US = 60 * SECOND_US
steps = st.lists(st.tuples(st.integers(0, 20 * SECOND_US), st.integers(1, 4)), min_size=1, max_size=60)


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(0, SECOND_US), st.integers(4, 9))
def test_no_minute_ever_holds_more_than_the_limit_and_nobody_waits_a_second_too_long(
    walk: list[tuple[int, int]], start_us: int, limit: int
) -> None:
    window = SlidingWindow()
    now_us = 1_790_000_000 * SECOND_US + start_us
    log: list[tuple[int, int]] = []
    for step_us, amount in walk:
        now_us += step_us
        window.slide(now_us // SECOND_US)
        inside = sum(each for at, each in log if at > now_us - MINUTE_US)
        a_second_longer = sum(each for at, each in log if at > now_us - MINUTE_US - SECOND_US)
        assert inside <= window.used <= a_second_longer
        if window.used + amount <= limit:
            window.add(amount, window.head)
            log.append((now_us, amount))
        else:
            wait_us = window.wait_us(now_us, amount, limit)
            assert wait_us is not None
            assert 0 < wait_us <= (BUCKETS * SECOND_US)
    for at, _ in log:
        assert sum(each for other, each in log if at <= other < at + MINUTE_US) <= limit


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(1, 9))
def test_the_wait_is_the_shortest_that_succeeds(walk: list[tuple[int, int]], limit: int) -> None:
    window = SlidingWindow()
    now_us = 1_790_000_000 * SECOND_US
    for step_us, amount in walk:
        now_us += step_us
        window.slide(now_us // SECOND_US)
        wait_us = window.wait_us(now_us, amount, limit)
        if wait_us is None:
            assert amount > limit
            continue
        if wait_us:
            assert window.used + amount > limit
            window.slide((now_us + wait_us - 1) // SECOND_US)
            assert window.used + amount > limit
            now_us += wait_us
            window.slide(now_us // SECOND_US)
        assert window.used + amount <= limit
        window.add(amount, window.head)


def test_a_burst_at_the_boundary_of_a_minute_is_no_double_burst() -> None:
    window = SlidingWindow()
    at = 1_790_000_040
    window.slide(at + 59)
    window.add(10, at + 59)
    assert window.slide(at + 60) == 10
    assert window.slide(at + 59 + 60) == 10
    assert window.slide(at + 59 + 61) == 0
