"""The sampler on both of its paths: each parameter alone, all of them in one batch, and the laws of seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.operations import CpuOperations
from kernels.sampling import draw_reference
from local_engine import sampler
from local_engine.logit_rules import Line
from local_engine.philox import philox, uniforms
from local_engine.ranges import MAX_COUNT, RANGES
from local_engine.sampling_params import SamplingParams

PROBABILITIES = [0.5, 0.2, 0.1, 0.1, 0.06, 0.03, 0.01]
DRAWS = 2000
PATHS = {"plain torch": draw_reference, "cpu kernel": CpuOperations(2, 16, 16).draw}
Sample = Callable[[torch.Tensor, list[Line]], list[int | None]]


@pytest.fixture(params=PATHS)
def sample(request: pytest.FixtureRequest) -> Sample:
    return lambda logits, batch: sampler.sample(logits, batch, PATHS[request.param])


def sequence(position: int = 0, choice: int = 0, *, prompt: Any = (), output: Any = (), **params: Any) -> Line:
    return Line(SamplingParams(**params), choice, position, prompt, output)


def logits(rows: int = 1) -> torch.Tensor:
    return torch.tensor([PROBABILITIES] * rows).log()


def draws(sample: Sample, **params: Any) -> dict[int | None, int]:
    """How often each token is drawn over many positions."""
    tokens = sample(logits(DRAWS), [sequence(position, **params) for position in range(DRAWS)])
    return {token: tokens.count(token) for token in sorted(set(tokens), key=str)}


def test_greedy_takes_the_best(sample: Sample) -> None:
    assert sample(torch.tensor([[0.1, 3.0, 2.9], [5.0, 1.0, 1.0]]), [sequence(temperature=0.0)] * 2) == [1, 0]


def test_draws_follow_the_distribution(sample: Sample) -> None:
    counts = draws(sample, seed=7)
    for token, probability in enumerate(PROBABILITIES):
        spread = math.sqrt(DRAWS * probability * (1 - probability))
        assert abs(counts.get(token, 0) - DRAWS * probability) < 4 * spread


def test_temperature_sharpens(sample: Sample) -> None:
    assert draws(sample, seed=7, temperature=0.05) == {0: DRAWS}


def test_top_k_keeps_the_k_best(sample: Sample) -> None:
    assert set(draws(sample, seed=3, top_k=2)) == {0, 1}


def test_top_p_keeps_the_fewest_that_hold_it(sample: Sample) -> None:
    assert set(draws(sample, seed=3, top_p=0.5)) == {0}
    assert set(draws(sample, seed=3, top_p=0.51)) == {0, 1}
    assert set(draws(sample, seed=3, top_p=0.75)) == {0, 1, 2, 3}  # 2 and 3 tie: both stay, whatever the sort does


def test_top_p_counts_within_what_top_k_left(sample: Sample) -> None:
    assert set(draws(sample, seed=3, top_k=2, top_p=0.7)) == {0}


def test_min_p_is_relative_to_the_best(sample: Sample) -> None:
    assert set(draws(sample, seed=3, min_p=0.19)) == {0, 1, 2, 3}


def test_a_wide_nucleus_of_a_large_vocabulary_is_found_by_looking_further(sample: Sample) -> None:
    flat = torch.zeros(1, 40_000)
    tokens = [sample(flat.clone(), [sequence(p, seed=5, top_p=0.9)])[0] for p in range(20)]
    assert len(set(tokens)) == 20


def test_the_seed_choice_and_position_decide_and_neighbours_do_not(sample: Sample) -> None:
    alone = [sample(logits(), [sequence(p, 2, seed=9)])[0] for p in range(50)]
    crowd = [
        sample(logits(3), [sequence(0, temperature=0.0), sequence(p, 2, seed=9), sequence(p, 0, seed=1, top_k=1)])[1]
        for p in range(50)
    ]
    assert alone == crowd
    assert alone != [sample(logits(), [sequence(p, 3, seed=9)])[0] for p in range(50)]
    assert alone != [sample(logits(), [sequence(p, 2, seed=10)])[0] for p in range(50)]


def test_frequency_and_presence_penalties_count_output_only(sample: Sample) -> None:
    row = torch.tensor([[1.0, 1.0, 1.0, 0.9]])
    batch = [sequence(temperature=0.0, prompt=[2], output=[0, 0, 1], frequency_penalty=0.1, presence_penalty=0.5)]
    scores = row.clone()
    assert sample(scores, batch) == [2]
    torch.testing.assert_close(scores, torch.tensor([[1.0 - 0.7, 1.0 - 0.6, 1.0, 0.9]]))


def test_the_repetition_penalty_counts_prompt_and_output_and_follows_the_sign(sample: Sample) -> None:
    scores = torch.tensor([[2.0, -2.0, 1.5, 0.0]])
    batch = [sequence(temperature=0.0, prompt=[0], output=[1], repetition_penalty=2.0)]
    assert sample(scores, batch) == [2]
    assert scores.tolist() == [[1.0, -4.0, 1.5, 0.0]]


def test_logit_bias_moves_and_min_tokens_masks_the_ends(sample: Sample) -> None:
    row = torch.tensor([[1.0, 2.0, 3.0]])
    assert sample(row.clone(), [sequence(temperature=0.0, logit_bias={0: 5.0})]) == [0]
    ending: dict[str, Any] = {"temperature": 0.0, "eos_token_ids": (2,), "min_tokens": 2, "max_tokens": 4}
    assert sample(row.clone(), [sequence(1, **ending)]) == [1]
    assert sample(row.clone(), [sequence(2, **ending)]) == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rule_39_nan_logits_fail_that_sequence_alone(sample: Sample, temperature: float) -> None:
    rows = logits(3)
    rows[1, 2] = float("nan")
    tokens = sample(rows, [sequence(temperature=temperature, seed=1)] * 3)
    assert tokens[1] is None
    assert tokens[0] is not None and tokens[0] == tokens[2]


def in_range(name: str) -> st.SearchStrategy[float]:
    allowed = RANGES[name]
    return st.floats(allowed.low, allowed.high, exclude_min=allowed.above_low)


IN_RANGE = st.fixed_dictionaries(
    {
        "temperature": in_range("temperature") | st.sampled_from([0.0, 5e-324, 1e-5, 0.01, 100.0]),
        "top_p": in_range("top_p") | st.sampled_from([5e-324, 1e-300, 1.0]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 7, 8, MAX_COUNT]),
        "min_p": in_range("min_p") | st.sampled_from([5e-324, 1.0]),
        "repetition_penalty": in_range("repetition_penalty") | st.sampled_from([0.01, 100.0]),
        "presence_penalty": in_range("presence_penalty"),
        "frequency_penalty": in_range("frequency_penalty"),
        "logit_bias": st.dictionaries(st.integers(0, 6), st.floats(-100.0, 100.0)),
    }
)


@settings(max_examples=150, deadline=None)
@given(IN_RANGE, st.lists(st.floats(-1e4, 1e4, width=32), min_size=7, max_size=7))
def test_any_parameters_within_their_ranges_draw_a_token(values: dict[str, Any], row: list[float]) -> None:
    one = sequence(prompt=[0, 1, 2], output=[2, 2, 6], **values)
    for draw in PATHS.values():
        (token,) = sampler.sample(torch.tensor([row]), [one], draw)
        assert token is not None and 0 <= token < 7


def test_a_row_with_everything_masked_fails_alone(sample: Sample) -> None:
    rows = torch.full((2, 4), -math.inf)
    rows[1] = 0.0
    assert sample(rows, [sequence(temperature=0.0)] * 2) == [None, 0]


def words(*values: int) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert tuple(int(word[0]) for word in philox(words(*counter), words(*key))) == expected


def test_uniforms_lie_in_the_unit_interval_and_use_all_64_bits_of_a_seed() -> None:
    numbers = uniforms([2**64 - 1, 2**63 - 1, 5], [0, 0, 0], [0, 0, 2**31])
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len(set(numbers.tolist())) == 3
