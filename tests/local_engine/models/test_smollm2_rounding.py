"""What a plain start answers: rounded activations and a bfloat16 cache must not say something else than float32 does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from local_engine.batch import ScheduledSequence
from local_engine.chat_template import ChatTemplate
from local_engine.config import EngineConfig
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.model_store import resolve_model

from .test_smollm2_oracle import BLOCKS_EACH, NAME, PROMPTS, generate

GREEDY = SamplingParams(temperature=0.0, max_tokens=1)


@pytest.fixture(scope="module")
def runners() -> Iterator[tuple[ModelRunner, ModelRunner]]:
    """As `--dtype auto` and as `--dtype float32` have it."""
    threads = torch.get_num_threads()
    yield tuple(
        ModelRunner(EngineConfig(NAME, device="cpu", dtype=dtype, num_blocks_override=BLOCKS_EACH, max_model_len=384))
        for dtype in ("auto", "float32")
    )  # type: ignore[misc]
    torch.set_num_threads(threads)


def test_logits_lie_as_near_to_float32s_as_those_of_a_model_in_bfloat16(
    runners: tuple[ModelRunner, ModelRunner],
) -> None:
    """Root mean squares. On plain torch, rounding keys and values in the cache to bfloat16 moves them by 0.03, rounding all
    inputs of matrices by 0.06 to 0.17; rounding those to 8 bits, by 0.1 to 0.4."""
    tokenizer = load_tokenizer(resolve_model(NAME))
    for text in PROMPTS:
        tokens = tokenizer.encode(text)
        batch = [ScheduledSequence(0, tokens, 0, list(range(BLOCKS_EACH)), True, GREEDY)]
        rounded, wide = (runner.logits(batch) for runner in runners)
        assert (rounded - wide).pow(2).mean().sqrt() <= 0.1, text


def test_the_first_question_of_the_readme_is_answered(runners: tuple[ModelRunner, ModelRunner]) -> None:
    tokenizer = load_tokenizer(resolve_model(NAME))
    template = ChatTemplate(tokenizer.chat_template or "", tokenizer.special)
    prompt = tokenizer.encode(template.render([{"role": "user", "content": "What is the capital of France?"}]))
    for runner in runners:
        answer = tokenizer.decode(generate(runner, [prompt], chunk=512)[0])
        assert answer.startswith("The capital of France is Paris."), runner.precision
