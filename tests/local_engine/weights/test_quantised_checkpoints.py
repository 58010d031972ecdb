"""Checkpoints of each quantiser's layout, packed here bit by bit in plain numpy: the engine computes what transformers computes
on the same values, on every path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.errors import ConfigError, ModelError
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from ..models.tiny_llama import save_tiny_llama

GROUP = 32
Tensors = dict[str, torch.Tensor]
Writer = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
"""From a matrix [N, K] to its tensors by last name, and the values that they stand for."""
TOKENS = [5, 17, 3, 44, 8, 61, 2]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def rounded(weight: torch.Tensor, *, symmetric: bool) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Codes 0..15 [K, N], scales [K / 32, N] and zero points [K / 32, N]."""
    groups = weight.T.numpy().reshape(-1, GROUP, weight.shape[0])
    low, high = np.minimum(groups.min(1), 0), np.maximum(groups.max(1), 0)
    scales = (np.abs(groups).max(1) / 7 if symmetric else (high - low) / 15).astype(np.float16)
    zeros = np.full(scales.shape, 8) if symmetric else np.round(-low / scales).astype(int).clip(1, 15)
    codes = np.round(groups / scales[:, None] + zeros[:, None]).astype(int).clip(0, 15)
    return codes.reshape(-1, weight.shape[0]), scales, zeros


def packed(values: NDArray[Any], order: list[int], bits: int = 4) -> torch.Tensor:
    """Along the last axis: nibble i of a word holds the value order[i] of its eight."""
    words = np.zeros((values.shape[0], values.shape[1] // len(order)), dtype=np.uint32)
    for row in range(words.shape[0]):
        for column in range(words.shape[1]):
            for nibble, place in enumerate(order):
                value = int(values[row, column * len(order) + place])
                words[row, column] |= np.uint32(value << bits * nibble)
    return torch.from_numpy(words.view(np.int32).copy())


IN_ORDER = list(range(8))


def values_of(codes: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any], groups: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(((codes - zeros[groups]) * scales.astype(np.float32)[groups]).T.astype(np.float32).copy())


def awq(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros = rounded(weight, symmetric=False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    tensors = {"qweight": packed(codes, order), "qzeros": packed(zeros, order), "scales": torch.from_numpy(scales)}
    return tensors, values_of(codes, scales, zeros, np.arange(len(codes)) // GROUP)


def gptq(weight: torch.Tensor, *, shuffled: bool) -> tuple[Tensors, torch.Tensor]:
    """Shuffled: as with desc_act, input k belongs to any group."""
    inputs = weight.shape[1]
    turn = np.random.default_rng(2).permutation(inputs) if shuffled else np.arange(inputs)
    codes, scales, zeros = rounded(weight[:, torch.from_numpy(turn)], symmetric=shuffled)
    groups = np.empty(inputs, dtype=np.int64)
    groups[turn] = np.arange(inputs) // GROUP
    codes = codes[np.argsort(turn)]
    tensors = {
        "qweight": packed(codes.T, IN_ORDER).T.contiguous(),
        "qzeros": packed(zeros - 1, IN_ORDER),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return tensors, values_of(codes, scales, zeros, groups)


def gptq_8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    groups = weight.T.numpy().reshape(-1, GROUP, weight.shape[0])
    scales = (np.abs(groups).max(1) / 127).astype(np.float16)
    codes = np.round(groups / scales[:, None] + 128).astype(int).clip(0, 255).reshape(-1, weight.shape[0])
    zeros = np.full(scales.shape, 128)
    tensors = {
        "qweight": packed(codes.T, [0, 1, 2, 3], 8).T.contiguous(),
        "qzeros": packed(zeros - 1, [0, 1, 2, 3], 8),
        "scales": torch.from_numpy(scales),
    }
    return tensors, values_of(codes, scales, zeros, np.arange(len(codes)) // GROUP)


def compressed_int4(weight: torch.Tensor, *, symmetric: bool) -> tuple[Tensors, torch.Tensor]:
    codes, scales, zeros = rounded(weight, symmetric=symmetric)
    tensors = {
        "weight_packed": packed(codes.T, IN_ORDER),
        "weight_scale": torch.from_numpy(scales.T.copy()),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = packed(zeros, IN_ORDER).T.contiguous()
    return tensors, values_of(codes, scales, zeros, np.arange(len(codes)) // GROUP)


def compressed_int8(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    values = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {"weight": values, "weight_scale": scale}, values.float() * scale.float()


def fp8_tensor(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    values = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(1.0)}, values.float() * scale


def fp8_rows(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale}, values.float() * scale


def fp8_blocks(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    outputs, inputs = weight.shape
    scale = torch.empty(-(-outputs // 128), -(-inputs // 128))
    whole = torch.empty_like(weight)
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            block = slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128)
            scale[row, column] = weight[block].abs().max() / 448
            whole[block] = scale[row, column]
    values = (weight / whole).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scale}, values.float() * whole


def compressed(layout: str, kind: str, bits: int) -> dict[str, Any]:
    weights = {"type": kind, "num_bits": bits, "group_size": GROUP if bits == 4 else None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


FORMATS: dict[str, tuple[dict[str, Any], Writer]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, lambda weight: gptq(weight, shuffled=False)),
    "gptq with its order of activations": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
        lambda weight: gptq(weight, shuffled=True),
    ),
    "gptq in 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": GROUP}, gptq_8),
    "compressed int4": (compressed("pack-quantized", "int", 4), lambda weight: compressed_int4(weight, symmetric=True)),
    "compressed int4 with zero points": (
        compressed("pack-quantized", "int", 4),
        lambda weight: compressed_int4(weight, symmetric=False),
    ),
    "compressed int8": (compressed("int-quantized", "int", 8), compressed_int8),
    "compressed fp8": (compressed("float-quantized", "float", 8), fp8_rows),
    "fp8, one scale": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor),
    "fp8, a scale for each row": ({"quant_method": "fbgemm_fp8"}, fp8_rows),
    "fp8 in blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8_blocks),
}
HELD_ON_TRITON = {"awq": "int4", "compressed int8": "int8"}


def write(folder: Path, name: str) -> Any:
    """The checkpoint in `folder`; returns transformers' model with the values that it stands for."""
    config, writer = FORMATS[name]
    model = save_tiny_llama(folder)
    tensors = load_file(folder / "model.safetensors")
    for key, weight in model.state_dict().items():
        if "_proj.weight" in key:
            stem = key.removesuffix(".weight")
            del tensors[key]
            quantised, values = writer(weight)
            tensors |= {f"{stem}.{last}": tensor.contiguous() for last, tensor in quantised.items()}
            weight.copy_(values)
    save_file(tensors, folder / "model.safetensors")
    declare(folder, config)
    return model


def declare(folder: Path, quantisation: dict[str, Any] | None) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantisation}))


def runner_of(folder: Path, **config: Any) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            str(folder), device="cpu", dtype="float32", num_blocks_override=8, max_num_batched_tokens=64, max_model_len=64,
            **config,
        )
    )  # fmt: skip


def logits_of(runner: ModelRunner) -> torch.Tensor:
    return runner.logits([ScheduledSequence(0, TOKENS, 0, [3], samples=True, params=SamplingParams(temperature=0.0))])


def expected(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


@pytest.mark.parametrize("name", FORMATS)
def test_a_checkpoint_gives_the_logits_of_the_values_that_it_stands_for(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, name)
    for kernels in ("torch", "auto"):
        runner = runner_of(tmp_path, kernels=kernels)
        torch.testing.assert_close(logits_of(runner), expected(model), rtol=0, atol=1e-4)
        assert " held as " in runner.precision


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
@pytest.mark.parametrize("name", HELD_ON_TRITON)
def test_tritons_kernels_multiply_by_the_packed_weights(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    model = write(tmp_path, name)
    runner = runner_of(tmp_path, kernels="triton")
    torch.testing.assert_close(logits_of(runner), expected(model), rtol=0, atol=1e-3)
    assert HELD_ON_TRITON[name] in runner.precision


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
def test_tritons_fp8_products_lose_what_fp8_activations_lose(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    model = write(tmp_path, "fp8 in blocks")
    runner = runner_of(tmp_path, kernels="triton")
    wanted = expected(model)
    lost = float((logits_of(runner) - wanted).norm() / wanted.norm())
    assert 1e-4 < lost < 0.15, lost  # three bits behind the point, at every matrix of two layers
    assert "fp8 (with fp8 activations)" in runner.precision


def test_symmetric_and_rounded_weights_stay_in_their_bits_on_the_cpu(tmp_path: Path) -> None:
    write(tmp_path, "compressed int4")
    assert "held as f32 and q4_0" in runner_of(tmp_path).precision  # the head is plain


@pytest.mark.parametrize(
    "config, words",
    [
        ({"quant_method": "bitsandbytes"}, "weights quantised by bitsandbytes cannot be read"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "AWQ weights of 4 bits in version 'gemv'"),
        ({"quant_method": "gptq", "bits": 3}, "GPTQ weights of 3 bits"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "scales of blocks of"),
        (compressed("marlin-24", "int", 4), "compressed-tensors of format 'marlin-24'"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_can(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    declare(tmp_path, config)
    with pytest.raises(ModelError, match=words) as raised:
        runner_of(tmp_path)
    assert "take the plain model" in str(raised.value) and "compressed-tensors" in str(raised.value)


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    tensors = load_file(tmp_path / "model.safetensors")
    stem = "model.layers.1.mlp.up_proj"
    tensors[f"{stem}.qzeros"] = tensors[f"{stem}.qzeros"][:, :3].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"{stem} is not stored as AWQ int4 has it"):
        runner_of(tmp_path)


def test_the_flag_names_what_the_file_is_or_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    assert "weights AWQ int4 held as" in runner_of(tmp_path, quantization="awq").precision
    with pytest.raises(ConfigError, match="--quantization gptq: these weights are AWQ int4; leave the flag out"):
        runner_of(tmp_path, quantization="gptq")
    with pytest.raises(ConfigError, match="--quantization int8: these weights are AWQ int4 already"):
        runner_of(tmp_path, quantization="int8")
    with pytest.raises(ConfigError, match=r"--quantization 'int5' is not supported; choose one of: int8, int4, "):
        EngineConfig("m", quantization="int5")
