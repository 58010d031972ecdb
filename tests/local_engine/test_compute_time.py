from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from local_engine.compute_time import split, token_weight


def test_equal_weights_share_the_odd_microsecond_from_the_first() -> None:
    assert split(10, [1, 1, 1]) == [4, 3, 3]


def test_the_largest_remainder_gets_what_is_left() -> None:
    assert split(10, [1, 2, 4]) == [1, 3, 6]


def test_a_prompt_token_weighs_one_and_a_sampled_one_two() -> None:
    assert [token_weight(1, True), token_weight(16, False), token_weight(16, True)] == [2, 16, 17]


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10_000), min_size=1, max_size=64))
def test_not_a_microsecond_is_lost(total_us: int, weights: list[int]) -> None:
    parts = split(total_us, weights)
    assert sum(parts) == total_us
    exact = [total_us * weight / sum(weights) for weight in weights]
    assert all(abs(part - fair) < 1 for part, fair in zip(parts, exact, strict=True))
