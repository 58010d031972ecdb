"""Quantised checkpoints: which tensors stand for a matrix, and how their bits lie.

| `quant_method` | tensors of a matrix [N, K], g inputs to a group |
| --- | --- |
| awq (AutoAWQ's `gemm`) | qweight int32 [K, N/8], qzeros int32 [K/g, N/8] in AWQ's order of nibbles, scales [K/g, N] |
| gptq (AutoGPTQ's) | the same, but qweight [K/8, N], all in order, zeros less one; perhaps g_idx [K] |
| compressed-tensors | weight_packed int32 [N, K/8], weight_scale [N, K/g], weight_zero_point int32 [N/8, K/g] or none |
| the same | weight in int8 or fp8, weight_scale of each row |
| fp8, fbgemm_fp8 | weight fp8 [N, K], weight_scale (one, or of each row) or weight_scale_inv (of blocks of 128 x 128) |

Sources: the packing code of AutoAWQ, AutoGPTQ and compressed-tensors; arXiv:2412.19437 for the blocks.
Activations are never rounded here to int8 or by the file's static scales: what such files ask for beyond that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernels.fp8 import FP8_BLOCK
from kernels.linear import stored
from kernels.quantised import awq_pack
from kernels.quantised_weight import MIDDLE, Fp8Weight, Int4Weight, Int8Weight, Weight

from ..errors import ModelError

COMPRESSED = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Tensors:
    """One matrix's tensors by their last names."""

    stem: str
    read: Callable[[str], torch.Tensor]
    has: Callable[[str], bool]

    def __getitem__(self, last: str) -> torch.Tensor:
        return self.read(f"{self.stem}.{last}")

    def __contains__(self, last: str) -> bool:
        return self.has(f"{self.stem}.{last}")


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """`markers` are the tensors by which a quantised matrix is known."""

    method: str
    description: str
    """For the start-up line."""
    markers: tuple[str, ...]
    decode: Callable[[Tensors], Weight]

    def matrix(self, tensors: Tensors) -> Weight | None:
        """None for a matrix that the quantiser left alone. Raises `ModelError` where the tensors' shapes do not fit."""
        if not any(marker in tensors for marker in self.markers):
            return None
        try:
            return self.decode(tensors)
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            raise ModelError(
                f"{tensors.stem} is not stored as {self.description} has it ({error}): download the model again"
            ) from error


def checkpoint_format(own: Mapping[str, Any]) -> CheckpointFormat | None:
    """From config.json; None for plain weights. Raises `ModelError` naming what can be read."""
    config = own.get("quantization_config") or own.get("compression_config")
    if not config:
        return None
    method = str(config.get("quant_method", "")).lower()
    if method == "awq":
        return _awq(config)
    if method == "gptq":
        return _gptq(config)
    if method == "compressed-tensors":
        return _compressed(config)
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(config)
    raise _unreadable(f"weights quantised by {method or 'an unnamed method'}")


def _unreadable(what: str) -> ModelError:
    return ModelError(
        f"{what} cannot be read; take the plain model (and --quantization int8, int4 or fp8), or one of "
        "AWQ (gemm, 4 bits), GPTQ (4 or 8 bits), compressed-tensors (int4, int8 or fp8 weights) and FP8"
    )


def _awq(config: Mapping[str, Any]) -> CheckpointFormat:
    bits, version = int(config.get("bits", config.get("w_bit", 4))), str(config.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise _unreadable(f"AWQ weights of {bits} bits in version {version!r}")

    def decode(tensors: Tensors) -> Weight:
        scales = tensors["scales"]
        zeros = tensors["qzeros"] if "qzeros" in tensors else _middles(scales)
        return Int4Weight(tensors["qweight"], scales, zeros)

    return CheckpointFormat("awq", "AWQ int4", ("qweight",), decode)


def _gptq(config: Mapping[str, Any]) -> CheckpointFormat:
    bits = int(config.get("bits", 4))
    if bits not in (4, 8):
        raise _unreadable(f"GPTQ weights of {bits} bits")
    less_one = str(config.get("checkpoint_format", "gptq")).lower() != "gptq_v2"

    def decode(tensors: Tensors) -> Weight:
        scales = tensors["scales"]
        values = unpack_in_order(tensors["qweight"].T, bits).T
        zeros = unpack_in_order(tensors["qzeros"], bits)
        if less_one:
            zeros = zeros + 1 & (1 << bits) - 1
        inputs, group = values.shape[0], values.shape[0] // scales.shape[0]
        in_order = torch.arange(inputs) // group
        groups = tensors["g_idx"].long() if "g_idx" in tensors else in_order
        if bits == 4 and torch.equal(groups, in_order):
            return Int4Weight(awq_pack(values), scales, awq_pack(zeros))
        return stored(((values - zeros[groups]) * scales.float()[groups]).T.contiguous())

    return CheckpointFormat("gptq", f"GPTQ int{bits}", ("qweight",), decode)


def _compressed(config: Mapping[str, Any]) -> CheckpointFormat:
    layout = str(config.get("format", ""))
    schemes = {
        (weights.get("type"), weights.get("num_bits"))
        for group in (config.get("config_groups") or {}).values()
        if (weights := group.get("weights"))
    }
    if layout not in COMPRESSED or len(schemes) != 1:
        raise _unreadable(f"compressed-tensors of format {layout!r} with {len(schemes)} kinds of weights")
    ((kind, bits),) = schemes
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise _unreadable(f"compressed-tensors of {bits}-bit {kind} weights")

    def decode(tensors: Tensors) -> Weight:
        scale = tensors["weight_scale"]
        if "weight_packed" in tensors:
            return _compressed_packed(tensors, scale, int(bits))
        values = tensors["weight"]
        if values.dtype == FP8:
            return _fp8_weight(values, scale)
        scales = scale.float().reshape(values.shape[0], -1)
        offset = tensors["weight_zero_point"].float().reshape(scales.shape) if "weight_zero_point" in tensors else None
        if scales.shape[1] == 1 and (offset is None or not bool(offset.any())):
            return Int8Weight(values, scales[:, 0].contiguous())
        group = values.shape[1] // scales.shape[1]
        shifted = values.float() - (0.0 if offset is None else offset.repeat_interleave(group, dim=1))
        return stored(shifted * scales.repeat_interleave(group, dim=1))

    return CheckpointFormat(
        "compressed-tensors", f"compressed-tensors {kind}{bits}", ("weight_packed", "weight_scale"), decode
    )


def _compressed_packed(tensors: Tensors, scale: torch.Tensor, bits: int) -> Weight:
    """Values are kept plus half their range, in order, the zero points as well (packed along the outputs)."""
    outputs, inputs = (int(size) for size in tensors["weight_shape"])
    values = unpack_in_order(tensors["weight_packed"], bits)[:, :inputs].T
    scales, half = scale.reshape(outputs, -1).T.contiguous(), 1 << bits - 1
    if "weight_zero_point" in tensors:
        zeros = unpack_in_order(tensors["weight_zero_point"].T, bits)[:, :outputs]
    else:
        zeros = torch.full(scales.shape, half, dtype=torch.int32)
    group = inputs // scales.shape[0]
    in_order = torch.arange(inputs) // group
    groups = tensors["weight_g_idx"].long() if "weight_g_idx" in tensors else in_order
    if bits == 4 and outputs % 8 == 0 and torch.equal(groups, in_order):
        return Int4Weight(awq_pack(values), scales, awq_pack(zeros))
    return stored(((values - zeros[groups]) * scales.float()[groups]).T.contiguous())


def _fp8(config: Mapping[str, Any]) -> CheckpointFormat:
    block = config.get("weight_block_size")
    if block is not None and list(block) != [FP8_BLOCK, FP8_BLOCK]:
        raise _unreadable(f"FP8 weights with scales of blocks of {block}")
    if str(config.get("fmt", "e4m3")).lower() not in ("e4m3", "float8_e4m3fn"):
        raise _unreadable(f"FP8 weights of format {config['fmt']}")

    def decode(tensors: Tensors) -> Weight:
        inverse = "weight_scale_inv" in tensors
        return _fp8_weight(tensors["weight"], tensors["weight_scale_inv" if inverse else "weight_scale"])

    return CheckpointFormat(str(config["quant_method"]).lower(), "FP8", ("weight_scale", "weight_scale_inv"), decode)


def _fp8_weight(values: torch.Tensor, scale: torch.Tensor) -> Weight:
    """One scale for all becomes one of each row."""
    if values.dtype != FP8:
        raise ValueError(f"its values are {values.dtype}")
    outputs, inputs = values.shape
    scale = scale.float()
    if scale.numel() == 1:
        return Fp8Weight(values, scale.reshape(1).expand(outputs).contiguous())
    if scale.numel() == outputs:
        return Fp8Weight(values, scale.reshape(outputs).contiguous())
    blocks = (-(-outputs // FP8_BLOCK), -(-inputs // FP8_BLOCK))
    if tuple(scale.shape) != blocks:
        raise ValueError(f"scales of {tuple(scale.shape)} for {outputs} x {inputs} weights")
    return Fp8Weight(values, scale.contiguous())


def unpack_in_order(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [rows, n] to int32 values [rows, n * 32 / bits], the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (packed[..., None] >> shifts & (1 << bits) - 1).flatten(-2)


def _middles(scales: torch.Tensor) -> torch.Tensor:
    return awq_pack(torch.full(scales.shape, MIDDLE, dtype=torch.int32))
