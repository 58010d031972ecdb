"""Rule 36 on the real model: greedy, fp32, several engines over one loaded runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from local_engine.batch import ScheduledSequence, StepOutput
from local_engine.chat_template import ChatTemplate
from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.messages import AddSequence
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.model_store import resolve_model

MODEL = "smollm2-135m-instruct"
SHARED = "You are a careful assistant who answers in one short sentence and never makes things up. "
QUESTIONS = ["Why is the sky blue?", "List three colours.", "Who wrote Hamlet?", "What is 12 plus 30?"]
OUTPUT = 24


class Window:
    """The first `num_blocks` pages of a runner, as a runner of its own."""

    launcher = None

    def __init__(self, runner: ModelRunner, num_blocks: int) -> None:
        self._runner = runner
        self.num_blocks = num_blocks
        self.vocab_size = runner.vocab_size
        self.max_model_len = num_blocks * 16
        self.window = None
        self.adapters = runner.adapters

    def load_adapter(self, name: str, folder: str) -> None:
        raise NotImplementedError

    def unload_adapter(self, name: str) -> None:
        raise NotImplementedError

    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        return self._runner.execute(batch)


@pytest.fixture(scope="module")
def runner() -> Iterator[ModelRunner]:
    threads = torch.get_num_threads()
    config = EngineConfig(MODEL, device="cpu", dtype="float32", num_blocks_override=64, max_num_batched_tokens=256)
    yield ModelRunner(config)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(resolve_model(MODEL))
    template = ChatTemplate(tokenizer.chat_template or "", tokenizer.special)
    system = {"role": "system", "content": SHARED}
    return [tokenizer.encode(template.render([system, {"role": "user", "content": text}])) for text in QUESTIONS]


def outputs(
    runner: ModelRunner, prompts: list[list[int]], *, blocks: int = 64, together: bool = True, **config: object
) -> tuple[list[list[int]], EngineCore]:
    core = EngineCore(EngineConfig(MODEL, **config), Window(runner, blocks))  # type: ignore[arg-type]
    tokens: list[list[int]] = [[] for _ in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT)
    for id, prompt in enumerate(prompts):
        core.handle(AddSequence(id, prompt, params, 0, b"", 0, None))
        if not together:
            drain(core, tokens)
    drain(core, tokens)
    core.check_integrity()
    return tokens, core


def drain(core: EngineCore, tokens: list[list[int]]) -> None:
    while core.has_work:
        for update in core.step():
            tokens[update.id] += update.tokens


@pytest.fixture(scope="module")
def alone(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt by itself: no cache, no chunks, no neighbours."""
    tokens, _ = outputs(runner, prompts, together=False, enable_prefix_caching=False)
    assert [len(output) for output in tokens] == [OUTPUT] * len(prompts)
    assert len({tuple(output) for output in tokens}) == len(prompts), "the answers differ, or equality says little"
    return tokens


def test_rule_36_with_neighbours_as_alone(
    runner: ModelRunner, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    assert outputs(runner, prompts, enable_prefix_caching=False)[0] == alone


def test_rule_36_with_the_prefix_cache_as_without(
    runner: ModelRunner, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    tokens, core = outputs(runner, prompts, together=False)
    assert tokens == alone
    assert core.stats().prefix_hits >= 16 * (len(prompts) - 1)


@pytest.mark.parametrize("budget", [5, 16, 23])
def test_rule_36_with_any_chunk_as_without(
    runner: ModelRunner, prompts: list[list[int]], alone: list[list[int]], budget: int
) -> None:
    assert outputs(runner, prompts, max_num_batched_tokens=budget)[0] == alone


def test_rule_36_with_preemption_as_without(
    runner: ModelRunner, prompts: list[list[int]], alone: list[list[int]]
) -> None:
    tokens, core = outputs(runner, prompts, blocks=7, enable_prefix_caching=False)
    assert core.stats().preemptions > 0
    assert tokens == alone
