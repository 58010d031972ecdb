"""Prompts go where fewest sequences are, unless another core knows how they begin and is hardly fuller."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from local_engine.core_choice import BEGINNING, SLACK, CoreChoice

SYSTEM = list(range(BEGINNING))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_a_prompt_that_nobody_knows_goes_to_a_core_with_the_fewest(loads: list[int]) -> None:
    choice = CoreChoice()
    for prompt in ([1, 2], SYSTEM):
        assert loads[choice.choose(prompt, b"", None, loads)] == min(loads)


def test_equal_cores_take_turns() -> None:
    choice = CoreChoice()
    assert [choice.choose([7], b"", None, [0, 0, 0]) for _ in range(6)] == [1, 2, 0, 1, 2, 0]


def test_a_beginning_is_read_once_as_long_as_its_core_is_hardly_fuller() -> None:
    choice = CoreChoice()
    home = choice.choose([*SYSTEM, 1], b"", None, [0, 0])
    loads = [0, 0]
    for question in range(SLACK + 1):
        assert choice.choose([*SYSTEM, question], b"", None, loads) == home
        loads[home] += 1
    assert choice.choose([*SYSTEM, 9], b"", None, loads) == 1 - home
    assert choice.choose([*SYSTEM, 9], b"", None, [3, 3]) in (0, 1)


@given(st.integers(0, 3))
def test_salts_and_adapters_share_no_beginning(place: int) -> None:
    choice = CoreChoice()
    loads = [int(core != place) for core in range(4)]
    assert choice.choose(SYSTEM, b"", None, loads) == place
    other = [1, 1, 1, 1]
    other[(place + 1) % 4] = 0
    assert choice.choose(SYSTEM, b"", None, other) == place
    assert choice.choose(SYSTEM, b"salt", None, other) == (place + 1) % 4
    assert choice.choose(SYSTEM, b"", "tone", other) == (place + 1) % 4
