"""SmolLM2's real weights against transformers, token for token, alone and all in one batch.

The oracle reads prompt and output in one pass (teacher forcing): if its best token after every prefix is the token that the
engine drew there, then greedy decoding by the oracle gives the same text. Where its two best logits lie within 1e-4 of each
other, either is accepted; such ties are counted, printed, and may be at most 1 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.gguf_source import GGUFSource
from local_engine.weights.model_store import resolve_model

NAME = "smollm2-135m-instruct"
OUTPUT = 64
TIE = 1e-4
BLOCKS_EACH = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=OUTPUT)
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is 17 + 25?\nA:",
    "SELECT name, count(*) FROM users",
    "中国的首都是",
    "Die drei größten Städte Deutschlands sind",
    "1, 1, 2, 3, 5, 8,",
    '{"name": "Ada", "born":',
    "To be, or not to be,",
    "E = mc^2 means that",
    "a",
    "    \n\n",
    "Список покупок:\n-",
    "🙂🙃🙂",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "Water boils at 100 degrees. " * 3 + "In Fahrenheit that is",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about rain.<|im_end|>\n<|im_start|>assistant\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "import numpy as np\n\nx = np.",
]


@dataclass(slots=True)
class Growing:
    """A sequence on its way."""

    tokens: list[int]
    table: list[int]
    computed: int = 0

    def share(self, number: int, most: int) -> ScheduledSequence:
        new = self.tokens[self.computed : self.computed + most]
        last = self.computed + len(new) == len(self.tokens)
        return ScheduledSequence(number, new, self.computed, self.table, last, GREEDY)


def generate(runner: ModelRunner, prompts: list[list[int]], *, chunk: int) -> list[list[int]]:
    """64 greedy tokens each, everything in one batch, prompts in chunks of `chunk` tokens (so that steps are mixed)."""
    running = [
        Growing(list(prompt), list(range(number * BLOCKS_EACH, (number + 1) * BLOCKS_EACH)))
        for number, prompt in enumerate(prompts)
    ]
    outputs: list[list[int]] = [[] for _ in prompts]
    while unfinished := [number for number, output in enumerate(outputs) if len(output) < OUTPUT]:
        batch = [running[number].share(number, chunk) for number in unfinished]
        for number, sequence, token in zip(unfinished, batch, runner.execute(batch).tokens, strict=True):
            running[number].computed += len(sequence.token_ids)
            running[number].tokens += token
            outputs[number] += token
    return outputs


@pytest.fixture(scope="module")
def runner() -> Iterator[ModelRunner]:
    threads = torch.get_num_threads()
    blocks = BLOCKS_EACH * len(PROMPTS)
    yield ModelRunner(EngineConfig(NAME, device="cpu", dtype="float32", num_blocks_override=blocks))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(resolve_model(NAME))
    return [tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def oracle() -> Any:
    """transformers' Llama with the file's dequantised weights."""
    source = GGUFSource(resolve_model(NAME))
    config = source.config
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                max_position_embeddings=config.max_position_embeddings,
                rms_norm_eps=config.rms_norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope["rope_theta"]},
                tie_word_embeddings=True,
            )
        )
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    state = {
        name: (source.vector(name) if "norm" in name else source.matrix(name).dequantise().float())
        for name in model.state_dict()
        if name != "lm_head.weight"
    }
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.eval()


def differences(oracle: Any, prompt: list[int], output: list[int]) -> tuple[int, list[str]]:
    """(ties, real differences) of an output."""
    with torch.inference_mode():
        logits = oracle(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2, dim=-1)
    ties, wrong = 0, []
    for position, token in enumerate(output):
        if token == int(best.indices[position, 0]):
            continue
        gap = float(best.values[position, 0] - logits[position, token])
        if gap < TIE:
            ties += 1
        else:
            wrong.append(f"position {position}: {token} is {gap:.2e} behind {int(best.indices[position, 0])}")
    return ties, wrong


def check(oracle: Any, prompts: list[list[int]], outputs: list[list[int]], how: str) -> None:
    ties = 0
    for text, prompt, output in zip(PROMPTS, prompts, outputs, strict=True):
        found, wrong = differences(oracle, prompt, output)
        assert not wrong, f"{text!r} {how}: {wrong[0]}"
        ties += found
    total = OUTPUT * len(prompts)
    print(f"\n{how}: {total} tokens of {len(prompts)} prompts equal transformers, {ties} of them at a tie (< {TIE:g})")
    assert ties <= total // 100


def test_greedy_output_equals_transformers_alone(runner: ModelRunner, prompts: list[list[int]], oracle: Any) -> None:
    check(oracle, prompts, [generate(runner, [prompt], chunk=2048)[0] for prompt in prompts], "alone")


def test_greedy_output_equals_transformers_all_in_one_batch(
    runner: ModelRunner, prompts: list[list[int]], oracle: Any
) -> None:
    check(oracle, prompts, generate(runner, prompts, chunk=16), "in one batch")


def test_the_start_up_line_states_the_precision(runner: ModelRunner) -> None:
    assert runner.precision.startswith("weights Q4_1 and Q8_0 at their own bits, ")
    assert "float32 activations, KV cache float32" in runner.precision
    assert "bfloat16 linears" not in runner.precision, "no weight of this file is stored in bfloat16"
