"""The laws of rules 36, 37 and 39 on a model whose pages can be read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.errors import ConfigError
from local_engine.messages import Abort, AddSequence, ResetPrefixCache, Update
from local_engine.sampling_params import SamplingParams
from local_engine.sequence import FinishReason

from .tiny import CRASH_PROMPT, NAN_TOKEN, TinyRunner, oracle_output

MAX_LEN = 128


@dataclass
class Ended:
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    cached: int = 0
    compute_us: int = 0
    error: str | None = None

    def take(self, update: Update) -> None:
        assert self.reason is None, "an ended sequence has no more news"
        self.tokens += update.tokens
        self.reason = update.finish_reason
        self.cached = update.cached_tokens
        self.compute_us = update.compute_us
        self.error = update.error


class Harness:
    """An engine core and everything it has said."""

    def __init__(self, num_blocks: int = 64, window: int | None = None, ahead: bool = False, **config: object) -> None:
        self.runner = TinyRunner(num_blocks, min(MAX_LEN, num_blocks * 16), window=window, ahead=ahead)
        self.core = EngineCore(EngineConfig("tiny", **config), self.runner)  # type: ignore[arg-type]
        self.ended: dict[int, Ended] = {}

    def add(self, id: int, prompt: Sequence[int], *, salt: bytes = b"", priority: int = 0, **params: object) -> None:
        given = SamplingParams(temperature=0.0, **params)  # type: ignore[arg-type]
        self.ended[id] = Ended()
        self.core.handle(AddSequence(id, list(prompt), given, 0, salt, priority, None))

    def step(self) -> list[Update]:
        updates = self.core.step()
        for update in updates:
            self.ended[update.id].take(update)
        return updates

    def finish(self) -> None:
        steps = 0
        while self.core.has_work:
            self.step()
            steps += 1
            assert steps < 20_000, "the engine does not come to an end"
        self.core.check_integrity()
        stats = self.core.stats()
        assert stats.free_blocks == stats.num_blocks
        assert sum(ended.compute_us for ended in self.ended.values()) == stats.busy_us


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    output: int
    delay: int


jobs = st.lists(st.builds(Job, prompts.map(tuple), st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=8)


def run(work: Sequence[Job], **config: object) -> Harness:
    harness = Harness(**config)  # type: ignore[arg-type]
    step = 0
    for id, job in sorted(enumerate(work), key=lambda pair: pair[1].delay):
        while step < job.delay:
            harness.step()
            step += 1
        harness.add(id, job.prompt, max_tokens=job.output)
    harness.finish()
    return harness


@settings(max_examples=60, deadline=None)
@given(
    work=jobs,
    blocks=st.integers(8, 14),
    budget=st.integers(1, 70),
    caching=st.booleans(),
    seats=st.integers(1, 8),
    policy=st.sampled_from(["fcfs", "priority", "shortest"]),
    ahead=st.booleans(),
)
def test_rule_36_output_depends_on_nothing_but_the_prompt(
    work: list[Job], blocks: int, budget: int, caching: bool, seats: int, policy: str, ahead: bool
) -> None:
    """Cache on = off, tiny pool = large, any chunk = none, neighbours = alone, steps launched ahead = not: all equal the
    oracle."""
    harness = run(
        work,
        num_blocks=blocks,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
        max_num_seqs=seats,
        scheduling_policy=policy,
        ahead=ahead,
    )
    for id, job in enumerate(work):
        assert harness.ended[id].tokens == oracle_output(job.prompt, job.output)
        assert harness.ended[id].reason is FinishReason.LENGTH


@settings(max_examples=30, deadline=None)
@given(work=jobs, blocks=st.integers(8, 14), budget=st.integers(1, 70), window=st.integers(1, 50), ahead=st.booleans())
def test_rule_36_pages_behind_a_window_are_given_back_and_nobody_misses_them(
    work: list[Job], blocks: int, budget: int, window: int, ahead: bool
) -> None:
    harness = run(work, num_blocks=blocks, max_num_batched_tokens=budget, window=window, ahead=ahead)
    for id, job in enumerate(work):
        assert harness.ended[id].tokens == oracle_output(job.prompt, job.output, window)


def test_a_long_sequence_with_a_window_holds_few_pages() -> None:
    harness = Harness(window=20)
    harness.add(1, [1] * 60, max_tokens=60)
    for _ in range(30):
        harness.step()
    held = harness.core.stats().num_blocks - harness.core.stats().free_blocks
    assert held == 2, "the window of 20 tokens and the next token lie in two pages"


def test_rule_36_preemption_happens_in_a_tiny_pool_and_changes_nothing() -> None:
    harness = Harness(num_blocks=8, enable_prefix_caching=False)
    for id in range(4):
        harness.add(id, [id] * 16, max_tokens=60)
    harness.finish()
    assert harness.core.stats().preemptions > 0
    for id in range(4):
        assert harness.ended[id].tokens == oracle_output([id] * 16, 60)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), prompts, st.integers(1, 30)),
        st.tuples(st.just("nan"), prompts, st.integers(1, 30)),
        st.tuples(st.just("crash"), prompts, st.integers(1, 30)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.none() | st.integers(0, 3)),
        st.tuples(st.just("step"), st.integers(1, 4), st.none()),
        st.tuples(st.just("reset"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(script=actions, blocks=st.integers(8, 12), budget=st.integers(1, 64), ahead=st.booleans())
def test_rule_37_all_pages_come_back_after_any_mix_of_ends(
    script: list[tuple],  # type: ignore[type-arg]
    blocks: int,
    budget: int,
    ahead: bool,
) -> None:
    harness = Harness(num_blocks=blocks, max_num_batched_tokens=budget, ahead=ahead)
    crashed = False
    for kind, first, second in script:
        id = len(harness.ended)
        if kind == "add":
            harness.add(id, first, max_tokens=second)
        elif kind == "nan":
            harness.add(id, [NAN_TOKEN, *first], max_tokens=second)
        elif kind == "crash" and not crashed:
            crashed = True
            harness.add(id, [*CRASH_PROMPT, *first], max_tokens=second)
        elif kind == "abort":
            harness.core.handle(Abort(first, second))
        elif kind == "reset":
            harness.core.handle(ResetPrefixCache())
        elif kind == "step":
            for _ in range(first):
                harness.step()
    harness.finish()
    assert all(ended.reason is not None for ended in harness.ended.values())


def test_rule_37_a_full_hit_leaves_one_token_to_compute() -> None:
    harness = Harness()
    prompt = list(range(32))
    harness.add(1, prompt, max_tokens=1)
    harness.finish()
    harness.add(2, prompt, max_tokens=1)
    before = harness.runner.computed_tokens
    harness.finish()
    assert harness.ended[2].cached == 16
    assert harness.runner.computed_tokens - before == 16
    assert harness.ended[2].tokens == harness.ended[1].tokens


def test_rule_37_no_hit_across_salts() -> None:
    harness = Harness()
    for id, salt in enumerate([b"one", b"two", b"one"]):
        harness.add(id, range(33), salt=salt, max_tokens=1)
        harness.finish()
    assert [harness.ended[id].cached for id in range(3)] == [0, 0, 32]


def test_recomputation_after_preemption_does_not_count_as_cached() -> None:
    harness = Harness(num_blocks=8)
    for id in range(4):
        harness.add(id, [id] * 16, max_tokens=60)
    harness.finish()
    assert harness.core.stats().preemptions > 0
    assert [harness.ended[id].cached for id in range(4)] == [0, 0, 0, 0]


def test_pages_of_discarded_tokens_are_not_cached() -> None:
    harness = Harness()
    harness.add(1, range(16), max_tokens=100)
    for _ in range(40):
        harness.step()
    harness.core.handle(Abort(1, 2))
    harness.finish()
    whole = [*range(16), *oracle_output(range(16), 40)]
    harness.add(2, whole, max_tokens=1)
    harness.finish()
    assert harness.ended[2].cached == 16


def test_siblings_wait_for_their_leaders_pages() -> None:
    harness = Harness()
    given = SamplingParams(temperature=0.0, max_tokens=2)
    prompt = list(range(40))
    for id, leader in ((1, None), (2, 1), (3, 1)):
        harness.ended[id] = Ended()
        harness.core.handle(AddSequence(id, prompt, given, id - 1, b"", 0, leader))
    harness.finish()
    assert harness.runner.computed_tokens == 40 + 8 + 8 + 3
    assert all(harness.ended[id].tokens == oracle_output(prompt, 2) for id in (1, 2, 3))


def test_rule_38_all_end_tokens_stop_and_min_tokens_and_ignore_eos_hold() -> None:
    prompt = [5, 6, 7]
    output = oracle_output(prompt, 12)
    end = output[4]
    first = output.index(end)
    harness = Harness()
    harness.add(1, prompt, max_tokens=12, eos_token_ids=(999, end))
    harness.add(2, prompt, max_tokens=12, stop_token_ids=(end,))
    harness.add(3, prompt, max_tokens=12, eos_token_ids=(end,), ignore_eos=True)
    harness.add(4, prompt, max_tokens=12, eos_token_ids=(end,), min_tokens=12)
    harness.finish()
    assert [(harness.ended[id].tokens, harness.ended[id].reason) for id in (1, 2, 3, 4)] == [
        (output[: first + 1], FinishReason.STOP),
        (output[: first + 1], FinishReason.STOP),
        (output, FinishReason.LENGTH),
        (output, FinishReason.STOP if output[-1] == end else FinishReason.LENGTH),
    ]


def test_rule_39_nan_fails_its_request_alone() -> None:
    harness = Harness()
    harness.add(1, [NAN_TOKEN, 1, 2], max_tokens=5)
    harness.add(2, [1, 2, 3], max_tokens=5)
    harness.finish()
    assert harness.ended[1].reason is FinishReason.ERROR
    assert "NaN" in (harness.ended[1].error or "")
    assert harness.ended[2].tokens == oracle_output([1, 2, 3], 5)


def test_a_failing_step_fails_its_sequences_and_the_engine_lives_on() -> None:
    harness = Harness()
    harness.add(1, CRASH_PROMPT, max_tokens=5)
    harness.finish()
    assert harness.ended[1].reason is FinishReason.ERROR
    assert harness.ended[1].error == "The engine failed to compute this step: RuntimeError: asked to crash"
    harness.add(2, [1, 2, 3], max_tokens=5)
    harness.finish()
    assert harness.ended[2].tokens == oracle_output([1, 2, 3], 5)


def test_steps_that_keep_failing_end_the_engine() -> None:
    harness = Harness(max_num_seqs=1)
    for id in range(3):
        harness.add(id, CRASH_PROMPT, max_tokens=5)
    harness.step()
    harness.step()
    with pytest.raises(RuntimeError, match="asked to crash"):
        harness.step()


def test_output_ends_at_the_context_limit() -> None:
    harness = Harness(num_blocks=2)
    harness.add(1, range(20), max_tokens=100)
    harness.finish()
    assert len(harness.ended[1].tokens) == 12
    assert harness.ended[1].reason is FinishReason.LENGTH


def test_a_pool_smaller_than_the_asked_context_says_what_to_do() -> None:
    runner = TinyRunner(4, 128)
    with pytest.raises(ConfigError, match=r"--max-model-len 128 does not fit: the KV cache holds 64 tokens"):
        EngineCore(EngineConfig("tiny", max_model_len=128), runner)
    assert EngineCore(EngineConfig("tiny"), runner).max_model_len == 64


def test_priority_decides_who_goes_first_and_who_is_preempted() -> None:
    harness = Harness(num_blocks=8, scheduling_policy="priority", max_num_seqs=1)
    harness.add(1, [1] * 4, max_tokens=3, priority=5)
    harness.add(2, [2] * 4, max_tokens=3, priority=1)
    harness.add(3, [3] * 4, max_tokens=3, priority=5)
    assert _order_of_ends(harness) == [2, 1, 3]


def test_rule_44_shortest_first_ages() -> None:
    """A long prompt is overtaken by shorter ones of its time, but not by those that come much later."""
    harness = Harness(scheduling_policy="shortest", max_num_seqs=1)
    harness.add(1, [1] * 60, max_tokens=1)
    harness.add(2, [2] * 4, max_tokens=1)
    keys = [harness.core._scheduler.find(id).order[0] for id in (1, 2)]  # type: ignore[union-attr]
    assert 50_000 < keys[0] - keys[1] <= 56_000
    assert _order_of_ends(harness) == [2, 1]


def _order_of_ends(harness: Harness) -> list[int]:
    order: list[int] = []
    while harness.core.has_work:
        order += [update.id for update in harness.step() if update.finish_reason is not None]
    return order


def test_running_sequences_decode_before_waiting_ones_are_read() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.add(1, [1] * 8, max_tokens=10)
    harness.step()
    harness.add(2, [2] * 30, max_tokens=1)
    assert [update.id for update in harness.step()] == [1]
    assert harness.core.stats().running == 2
    assert _computed(harness, [2]) == [7]


def _computed(harness: Harness, ids: Iterable[int]) -> list[int]:
    found = [harness.core._scheduler.find(id) for id in ids]
    return [sequence.computed for sequence in found if sequence is not None]
