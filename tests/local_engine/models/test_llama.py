"""Tiny random models of the family: logits within 1e-4 of transformers, on every path, in any cut of the work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.errors import ConfigError, ModelError
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .tiny_llama import SMALL, save_tiny_llama

GREEDY = SamplingParams(temperature=0.0)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied embeddings": {"tie_word_embeddings": True},
    "llama3 rope scaling": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "own head size": {"head_dim": 32},
    "biases everywhere": {"attention_bias": True, "mlp_bias": True},
    "one kv head": {"num_key_value_heads": 1},
    "sizes that the CPU kernels do not take": {"hidden_size": 40, "intermediate_size": 56, "head_dim": 8},
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def runner_of(folder: Path, **config: Any) -> ModelRunner:
    return ModelRunner(
        EngineConfig(str(folder), device="cpu", num_blocks_override=32, max_num_batched_tokens=128, **config)
    )


def share(tokens: list[int], start: int, table: list[int], number: int = 0) -> ScheduledSequence:
    return ScheduledSequence(number, tokens, start, table, samples=True, params=GREEDY)


def ids(count: int, seed: int = 1) -> list[int]:
    return torch.randint(0, SMALL["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def oracle(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def assert_logits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path, **VARIANTS[variant])
    tokens = ids(70)
    assert_logits(runner_of(tmp_path).logits([share(tokens, 0, [9, 3, 27, 4, 11])]), oracle(model, tokens))


def test_rule_36_chunks_and_neighbours_change_nothing(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    runner = runner_of(tmp_path)
    first, second, third = ids(40, 1), ids(23, 2), ids(50, 3)
    expected = [oracle(model, tokens) for tokens in (first, second, third)]
    tables = [5, 1, 20], [7, 2], [3, 30, 9, 14]
    runner.logits([share(first[:17], 0, tables[0]), share(second[:22], 0, tables[1], 1)])
    mixed = runner.logits(
        [share(first[17:], 17, tables[0]), share(second[22:], 22, tables[1], 1), share(third, 0, tables[2], 2)]
    )
    assert_logits(mixed[:23], expected[0][17:])
    assert_logits(mixed[23:24], expected[1][22:])
    assert_logits(mixed[24:], expected[2])


def test_logits_for_comparisons_outlive_the_next_step(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    runner = runner_of(tmp_path)
    first, second = ids(20, 1), ids(20, 2)
    kept = runner.logits([share(first, 0, [0, 1])])
    runner.logits([share(second, 0, [2, 3], 1)])
    assert_logits(kept, oracle(model, first))


def test_bfloat16_weights_keep_their_values(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path).bfloat16().save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = ids(30)
    runner = runner_of(tmp_path, dtype="float32")
    assert "bfloat16" in runner.precision
    assert_logits(runner.logits([share(tokens, 0, [0, 1])]), oracle(model, tokens))


def test_a_step_draws_only_where_it_was_asked_to(tmp_path: Path) -> None:
    model = save_tiny_llama(tmp_path)
    tokens = ids(20)
    chunk = share(tokens[:10], 0, [4, 5])
    chunk.samples = False
    runner = runner_of(tmp_path)
    assert runner.execute([chunk]).tokens == [[]]
    output = runner.execute([share(tokens[10:], 10, [4, 5])])
    assert output.tokens == [[int(oracle(model, tokens)[-1].argmax())]]
    assert output.nan_sequences == []


def test_rule_39_a_sequence_with_nan_in_its_cache_fails_alone(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    runner = runner_of(tmp_path)
    keys, _ = runner._model._cache.layers[0]  # type: ignore[union-attr]
    keys[4, :, 0] = float("nan")
    output = runner.execute([share([1], 5, [4], number=71), share([1], 5, [6], number=72)])
    assert output.nan_sequences == [71]
    assert [len(tokens) for tokens in output.tokens] == [0, 1]


def changed_config(folder: Path, **changes: Any) -> Path:
    save_tiny_llama(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'RwkvForCausalLM' are not supported; supported are LlamaForCausalLM"):
        runner_of(changed_config(tmp_path, architectures=["RwkvForCausalLM"]))


def test_a_rope_scaling_that_is_not_there_is_refused_not_ignored(tmp_path: Path) -> None:
    folder = changed_config(tmp_path, rope_parameters={"rope_type": "mrope", "rope_theta": 10000.0})
    with pytest.raises(
        ModelError, match="'mrope' is not supported .there are: default, linear, dynamic, llama3, yarn, longrope"
    ):
        runner_of(folder)


def test_more_context_than_the_model_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    with pytest.raises(ConfigError, match=r"512 is more than the model's 256"):
        runner_of(tmp_path, max_model_len=512)


def test_the_cache_follows_the_weights_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    assert "KV cache float32" in runner_of(tmp_path).precision
    assert "KV cache bfloat16" in runner_of(tmp_path, dtype="bfloat16").precision
    assert "KV cache bfloat16" in runner_of(tmp_path, kv_cache_dtype="bfloat16").precision
    with pytest.raises(
        ConfigError, match="KV cache of fp8 is not supported by numba kernels.*: use float32 or bfloat16; fp8 runs on"
    ):
        runner_of(tmp_path, kv_cache_dtype="fp8")
