"""Rule 40: log probabilities are of the raw distribution, and lists are complete with cache, chunks and preemption on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.messages import AddSequence
from local_engine.sampling_params import SamplingParams
from local_engine.token_logprobs import TokenLogprobs

from .dice import DiceRunner, dice_logits

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = st.lists(st.integers(0, 3), min_size=1, max_size=50)


class Collected:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt: list[TokenLogprobs] = []


def run(work: Sequence[tuple[list[int], SamplingParams]], blocks: int, budget: int) -> list[Collected]:
    config = EngineConfig("dice", max_num_batched_tokens=budget)
    core = EngineCore(config, DiceRunner(blocks, 128))
    results = [Collected() for _ in work]
    for number, (prompt, params) in enumerate(work):
        core.handle(AddSequence(number, prompt, params, 0, b"", 0, None))
    while core.has_work:
        for update in core.step():
            results[update.id].tokens += update.tokens
            results[update.id].logprobs += update.logprobs
            results[update.id].prompt += update.prompt_logprobs
    core.check_integrity()
    return results


def assert_told(told: TokenLogprobs, before: Sequence[int], token: int, best: int) -> None:
    expected = dice_logits(before).log_softmax(-1)
    top = expected.topk(best)
    assert told.ids == [token, *top.indices.tolist()]
    assert told.values == pytest.approx([float(expected[token]), *top.values.tolist()], abs=1e-5)
    assert told.rank == int((expected > expected[token]).sum()) + 1


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(PROMPT, st.none() | st.integers(0, 4), st.none() | st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(8, 12),
    st.integers(1, 60),
)
def test_rule_40_lists_are_complete_whatever_the_pool_the_cache_and_the_chunks(
    asked: list[tuple[list[int], int | None, int | None]], blocks: int, budget: int
) -> None:
    values: dict[str, Any] = {"max_tokens": 20, "temperature": 0.7, "top_k": 5, "logit_bias": {7: 3.0}}
    work = [
        (prompt, SamplingParams(seed=number, logprobs=output, prompt_logprobs=of_prompt, **values))
        for number, (prompt, output, of_prompt) in enumerate(asked)
    ]
    for (prompt, output, of_prompt), result in zip(asked, run(work, blocks, budget), strict=True):
        assert len(result.logprobs) == (0 if output is None else len(result.tokens) == 20 and 20)
        for at, told in enumerate(result.logprobs):
            assert_told(told, [*prompt, *result.tokens[:at]], result.tokens[at], output or 0)
        assert len(result.prompt) == (0 if of_prompt is None else len(prompt) - 1)
        for at, told in enumerate(result.prompt, 1):
            assert_told(told, prompt[:at], prompt[at], of_prompt or 0)


def test_bad_words_never_come_out_whole_and_only_allowed_tokens_come_out_at_all() -> None:
    free = run([([1], SamplingParams(max_tokens=40, seed=3, temperature=2.0, allowed_token_ids=(5, 6, 7)))], 16, 64)
    assert set(free[0].tokens) == {5, 6, 7}
    barred = SamplingParams(
        max_tokens=60, seed=3, temperature=2.0, allowed_token_ids=(5, 6, 7), bad_words=((5, 6), (7,), (6, 6, 5))
    )
    tokens = run([([1], barred)], 16, 64)[0].tokens
    assert set(tokens) == {5, 6}
    assert (5, 6) not in pairwise(tokens)
    assert (6, 6, 5) not in zip(tokens, tokens[1:], tokens[2:], strict=False)


def test_a_request_whose_own_parameters_leave_no_token_fails_alone() -> None:
    impossible = SamplingParams(max_tokens=5, allowed_token_ids=(5, 6), bad_words=((5,), (6,)))
    core = EngineCore(EngineConfig("dice"), DiceRunner(16, 128))
    core.handle(AddSequence(1, [1], impossible, 0, b"", 0, None))
    core.handle(AddSequence(2, [1], SamplingParams(max_tokens=3), 0, b"", 0, None))
    updates = [update for _ in range(3) for update in core.step()]
    assert "its parameters forbid every token" in str(next(u.error for u in updates if u.id == 1))
    assert sum(len(update.tokens) for update in updates if update.id == 2) == 3


def test_masks_cover_what_they_name_and_nothing_beyond() -> None:
    from local_engine.logit_rules import Line, apply_rules

    mask = torch.zeros(2, dtype=torch.int32).numpy()
    mask[0], mask[1] = (1 << 3) | (1 << 30), 1 << 1
    logits = torch.zeros(2, 80)
    apply_rules(logits, [Line(SamplingParams()), Line(SamplingParams(), mask=mask)])
    assert torch.isfinite(logits).sum(dim=-1).tolist() == [80, 3]
    assert torch.isfinite(logits[1]).nonzero().flatten().tolist() == [3, 30, 33]
