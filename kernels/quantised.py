"""Weights in 8 and 4 bits, and their plain torch forms.

int8: y = (x Wᵀ) s, with one scale per output. AWQ int4: w = (q - z) s, with a scale and a zero point per group of inputs and
output, eight 4-bit values to an int32 in the order [0, 2, 4, 6, 1, 3, 5, 7] (AutoAWQ's `gemm` layout; nibble i, lowest first,
holds output ORDER[i]). Source: https://arxiv.org/abs/2306.00978 and AutoAWQ's packing.
"""

from __future__ import annotations

import torch

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
NIBBLES = 8
"""4-bit values in an int32."""


def quantise_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, K] of any float type to int8 [N, K] and float32 scales [N], by the largest magnitude of a row."""
    largest = weight.float().abs().amax(dim=1) / 127
    scales = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (weight.float() / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def int8_linear_reference(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x [M, K], weight int8 [N, K], scales [N]; [M, N] in x's type, products in x's type."""
    return torch.nn.functional.linear(x, weight.to(x.dtype)) * scales.to(x.dtype)


def awq_pack(values: torch.Tensor) -> torch.Tensor:
    """uint4 values (as integers) [rows, N] to int32 [rows, N / 8]."""
    groups = values.to(torch.int64).view(values.shape[0], -1, NIBBLES)
    packed = torch.zeros(groups.shape[:2], dtype=torch.int64)
    for nibble, column in enumerate(AWQ_ORDER):
        packed |= groups[:, :, column] << (4 * nibble)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def awq_unpack(packed: torch.Tensor) -> torch.Tensor:
    """int32 [rows, N / 8] to int32 values 0..15 [rows, N]."""
    values = torch.empty(*packed.shape, NIBBLES, dtype=torch.int32, device=packed.device)
    for nibble, column in enumerate(AWQ_ORDER):
        values[..., column] = (packed >> (4 * nibble)) & 15
    return values.flatten(-2)


def awq_dequantise(weight: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """weight int32 [K, N / 8], zeros int32 [K / group, N / 8], scales [K / group, N]; [K, N] in the scales' type."""
    group = weight.shape[0] // scales.shape[0]
    offset = awq_unpack(weight) - awq_unpack(zeros).repeat_interleave(group, dim=0)
    return offset.to(scales.dtype) * scales.repeat_interleave(group, dim=0)
