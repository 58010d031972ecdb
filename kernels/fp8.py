"""FP8 (e4m3): x is kept as round(x / scale), with one scale per tensor, per row, or per block of 128 x 128.

Source: https://arxiv.org/abs/2209.05433. e4m3fn has no infinity: what lies above 448 is clamped before the cast.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FP8_LARGEST = 448.0
FP8_BLOCK = 128
"""Rows and columns that share a scale in block-wise weights; columns in group-wise activations (DeepSeek-V3's sizes)."""


@dataclass(frozen=True, slots=True)
class CacheScales:
    """Of one layer's cache in fp8, which holds round(key / scale) and round(value / scale): float32 [kv_heads] each."""

    keys: torch.Tensor
    values: torch.Tensor


def to_fp8(x: torch.Tensor, scale: torch.Tensor | float) -> torch.Tensor:
    """round(x / scale) as float8_e4m3fn, saturating; `scale` broadcasts over x."""
    return (x.float() / scale).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)


def row_scales(x: torch.Tensor) -> torch.Tensor:
    """float32 [rows]: a row's largest magnitude becomes 448 (1 for a row of zeros)."""
    largest = x.float().abs().amax(dim=-1) / FP8_LARGEST
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def block_scales(weight: torch.Tensor) -> torch.Tensor:
    """float32 [ceil(N / 128), ceil(K / 128)] for a weight [N, K]."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float().abs(), (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    tiles = padded.view(padded.shape[0] // FP8_BLOCK, FP8_BLOCK, padded.shape[1] // FP8_BLOCK, FP8_BLOCK)
    largest = tiles.amax(dim=(1, 3)) / FP8_LARGEST
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def spread_blocks(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Block scales repeated to one per weight, [rows, columns]."""
    whole = scales.repeat_interleave(FP8_BLOCK, dim=0).repeat_interleave(FP8_BLOCK, dim=1)
    return whole[:rows, :columns]


def group_scales(x: torch.Tensor) -> torch.Tensor:
    """float32 [rows, ceil(K / 128)]: one per row and 128 columns, for activations beside block-wise weights."""
    padded = torch.nn.functional.pad(x.float().abs(), (0, -x.shape[1] % FP8_BLOCK))
    largest = padded.view(x.shape[0], -1, FP8_BLOCK).amax(dim=-1) / FP8_LARGEST
    return torch.where(largest > 0, largest, torch.ones_like(largest))
