"""A KV cache in fp8: its scales out of the checkpoint or measured, and what it costs beside a cache in full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.errors import ModelError
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .models.tiny_llama import save_tiny_llama

TOKENS = list(range(3, 43))


def runner(folder: Path, **changes: str) -> ModelRunner:
    return ModelRunner(
        EngineConfig(str(folder), device="cpu", dtype="float32", kernels="torch", num_blocks_override=4, **changes)  # type: ignore[arg-type]
    )


def logits(engine: ModelRunner) -> torch.Tensor:
    return engine.logits([ScheduledSequence(1, TOKENS, 0, [3, 1, 0], True, SamplingParams(temperature=0.0))])


def add_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


def test_three_bits_of_mantissa_change_logits_by_little_and_a_page_takes_half_of_bfloat16(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    full, narrow = runner(tmp_path), runner(tmp_path, kv_cache_dtype="fp8")
    expected, found = logits(full), logits(narrow)
    assert not torch.equal(found, expected)
    assert float((found - expected).pow(2).mean().sqrt() / expected.std()) < 0.2
    keys = narrow._model._cache.layers[0][0]  # type: ignore[union-attr]
    assert keys.dtype == torch.float8_e4m3fn and keys.element_size() == 1


def test_measured_scales_are_powers_of_two_that_leave_room_above_the_largest(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    engine = runner(tmp_path, kv_cache_dtype="fp8")
    logits(engine)
    cache = engine._model._cache
    assert cache is not None and cache.scales is not None and len(cache.scales) == 2
    for (keys, values), scales in zip(cache.layers, cache.scales, strict=True):
        for kept, own in ((keys, scales.keys), (values, scales.values)):
            assert own.shape == (2,) and torch.equal(own.log2(), own.log2().round())
            largest = kept.float().abs().amax(dim=(0, 2, 3))
            assert bool(((largest > 448 / 64) & (largest <= 448 / 2)).all())


@pytest.mark.parametrize("name", ["self_attn.{}_scale", "self_attn.attn.{}_scale", "self_attn.{}_proj.{}_scale"])
def test_a_checkpoints_own_scales_are_taken_under_each_name(name: str, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    scales = {"k": torch.tensor(0.03), "v": torch.tensor([0.02, 0.05])}
    add_tensors(
        tmp_path,
        {f"model.layers.{n}.{name.format(kind, kind)}": s.clone() for n in range(2) for kind, s in scales.items()},
    )
    engine = runner(tmp_path, kv_cache_dtype="fp8")
    assert "float8_e4m3fn with the checkpoint's scales" in engine.precision
    cache = engine._model._cache
    assert cache is not None and cache.scales is not None
    assert [own.keys.tolist() for own in cache.scales] == [pytest.approx([0.03, 0.03])] * 2
    assert [own.values.tolist() for own in cache.scales] == [pytest.approx([0.02, 0.05])] * 2


def test_scales_that_cannot_be_are_named(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    add_tensors(
        tmp_path, {"model.layers.0.self_attn.k_scale": torch.ones(1), "model.layers.0.self_attn.v_scale": torch.ones(1)}
    )
    with pytest.raises(ModelError, match="scales of its KV cache for 1 of 2 layers"):
        runner(tmp_path, kv_cache_dtype="fp8")
    add_tensors(tmp_path, {"model.layers.0.self_attn.v_scale": torch.tensor([0.0])})
    with pytest.raises(
        ModelError, match=r"layers.0.self_attn.v_scale must be one positive number, or one for each of 2 KV heads"
    ):
        runner(tmp_path, kv_cache_dtype="fp8")


def test_a_checkpoint_made_for_fp8_gets_it_where_the_path_has_it(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    weights = {"weights": {"type": "float", "num_bits": 8}}
    quantised = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": weights},
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    }  # fmt: skip
    path.write_text(json.dumps({**values, "quantization_config": quantised}))
    assert "float8_e4m3fn" in runner(tmp_path).precision
    assert "float8_e4m3fn" not in runner(tmp_path, kv_cache_dtype="float32").precision
