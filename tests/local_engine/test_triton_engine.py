"""The engine on Triton's kernels (in the interpreter) beside the engine on plain torch: the same tokens, the same draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.errors import ConfigError
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .models.test_adapters import save_adapter
from .models.tiny_llama import save_tiny_llama, tiny_llama

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

PROMPTS = ([5, 17, 3], list(range(20, 37)), [9])
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, top_k=20, seed=4),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("triton-engine")
    save_tiny_llama(path, num_attention_heads=4, num_key_value_heads=2)
    return path


def runner(folder: Path, kernels: str, **changes: Any) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            str(folder), device="cpu", dtype="float32", kernels=kernels, num_blocks_override=12,
            max_num_batched_tokens=64, max_model_len=64, **changes,
        )
    )  # fmt: skip


def generated(engine: ModelRunner, count: int, adapters: Sequence[int | None] = (None,) * 3) -> list[list[int]]:
    """`count` tokens for each prompt, all three in one batch: first the prompts, then steps of one token each."""
    tokens = [list(prompt) for prompt in PROMPTS]
    done = [0] * len(tokens)
    for position in range(count):
        batch = [
            ScheduledSequence(
                sequence_id=number, token_ids=own[done[number] :], start=done[number],
                block_table=[number * 4 + page for page in range(4)], samples=True, params=PARAMS[number],
                output_position=position, adapter=adapters[number],
            )
            for number, own in enumerate(tokens)
        ]  # fmt: skip
        output = engine.execute(batch)
        assert output.nan_sequences == []
        for number, (token,) in enumerate(output.tokens):
            assert token is not None
            done[number] = len(tokens[number])
            tokens[number].append(token)
    return [own[len(prompt) :] for own, prompt in zip(tokens, PROMPTS, strict=True)]


def test_three_prompts_give_the_same_eight_tokens_on_triton_as_on_torch(folder: Path) -> None:
    triton_engine = runner(folder, "triton")
    assert "Triton kernels in the interpreter" in triton_engine.precision
    assert generated(triton_engine, 8) == generated(runner(folder, "torch"), 8)


def test_an_fp8_cache_gives_the_same_tokens_on_triton_as_on_torch(folder: Path) -> None:
    triton_engine = runner(folder, "triton", kv_cache_dtype="fp8")
    assert "KV cache float8_e4m3fn with measured scales (12 blocks of 16)" in triton_engine.precision
    assert generated(triton_engine, 3) == generated(runner(folder, "torch", kv_cache_dtype="fp8_e4m3"), 3)


def test_adapters_give_the_same_tokens_on_triton_as_on_torch(folder: Path, tmp_path: Path) -> None:
    model = tiny_llama(num_attention_heads=4, num_key_value_heads=2)
    save_adapter(tmp_path / "a", model, ("self_attn.q_proj", "mlp.down_proj"), 1)
    save_adapter(tmp_path / "b", model, ("self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"), 2, rank=6)
    modules = (("a", str(tmp_path / "a")), ("b", str(tmp_path / "b")))
    engines = [runner(folder, kernels, enable_lora=True, lora_modules=modules) for kernels in ("triton", "torch")]
    found, expected = (generated(each, 3, [each.adapters["b"].slot, None, each.adapters["a"].slot]) for each in engines)
    assert found == expected != generated(engines[1], 3)


def test_triton_in_bfloat16_cannot_be_asked_for_in_the_interpreter() -> None:
    import torch

    from kernels.triton.operations import TritonOperations

    with pytest.raises(AssertionError, match="bfloat16"):
        TritonOperations(torch.device("cpu"), torch.bfloat16, 4)


def test_an_unknown_path_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="--kernels 'cuda' is not supported; choose one of: auto, torch, triton"):
        EngineConfig("m", kernels="cuda")
