"""Tokens drawn by the kernel beside the reference's: the same number, the same token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import DrawSettings, draw_reference
from kernels.triton.sampling import draw

ROWS, VOCABULARY = 3, 50


def rows(seed: int = 1) -> torch.Tensor:
    return torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def same(uniform: float, **changes: float) -> DrawSettings:
    values = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **changes}
    return DrawSettings(
        temperature=[values["temperature"]] * ROWS,
        top_k=[int(values["top_k"])] * ROWS,
        top_p=[values["top_p"]] * ROWS,
        min_p=[values["min_p"]] * ROWS,
        uniform=[(uniform + row / ROWS) % 1.0 for row in range(ROWS)],
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.05, "temperature": 1.7},
        {"top_p": 1e-9},
        {"top_k": 500},
    ],
)
def test_each_filter_draws_the_references_token(changes: dict[str, float]) -> None:
    for uniform in (0.13,):
        chosen = same(uniform, **changes)
        assert draw(rows(), chosen) == draw_reference(rows(), chosen)


def test_ties_at_the_threshold_all_stay() -> None:
    logits = torch.zeros(ROWS, VOCABULARY)
    logits[:, 30:] = 1.0
    drawn = draw(logits, same(0.2, top_k=3))
    assert drawn == draw_reference(logits, same(0.2, top_k=3)) == [34, 40, 47]  # spread over all twenty equals


def test_rule_39_a_row_without_numbers_gives_none_and_its_neighbours_their_tokens() -> None:
    logits = rows()
    logits[0, 3], logits[1, :], logits[2, 5] = math.nan, -math.inf, math.inf
    for temperature in (0.0, 1.0):
        drawn = draw(logits, same(0.4, temperature=temperature))
        assert drawn[:3] == [None, None, None]
        assert drawn == draw_reference(logits, same(0.4, temperature=temperature))


def test_a_masked_token_is_never_drawn() -> None:
    logits = rows()
    logits[:, ::2] = -math.inf
    assert all(token is not None and token % 2 == 1 for u in range(3) for token in draw(logits, same(u / 9)))


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(ROWS, VOCABULARY)
    logits[:, [11, 12]] = 4.0
    assert draw(logits, same(0.5, temperature=0.0)) == [11] * ROWS


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    uniform=st.floats(0, 1, exclude_max=True),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.05, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.5]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
)
def test_any_settings_draw_the_references_tokens(
    seed: int, uniform: float, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    chosen = same(uniform, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    assert draw(rows(seed), chosen) == draw_reference(rows(seed), chosen)
