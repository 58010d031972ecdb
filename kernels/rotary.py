"""Rotary position embedding (halves, as Hugging Face's Llama has it) and the write of keys and values into the cache.

With a = x[i], b = x[i + d/2] and the angle t = position * f_i:  a' = a cos t - b sin t,  b' = b cos t + a sin t.
Source: https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from .batch import BLOCK


def rotary_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> torch.Tensor:
    """f_i = theta^(-2 i / d) for i < d / 2, float32; `scaling` is a config.json's `rope_scaling` (None, linear, llama3).

    llama3 stretches long wavelengths by `factor`, leaves short ones, and blends between. Source: Llama 3.1's
    reference code (apply_scaling). Raises ValueError for a type it does not know.
    """
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    kind = "default" if not scaling else str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind == "default":
        return frequencies
    assert scaling is not None
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind != "llama3":
        raise ValueError(f"rope_scaling of type {kind!r}")
    factor, context = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / frequencies
    blend = (context / wavelength - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelength > context / low, frequencies / factor, frequencies)
    between = (wavelength <= context / low) & (wavelength >= context / high)
    return torch.where(between, blended, stretched)


def rotary_tables(frequencies: torch.Tensor, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [positions, head_dim / 2]."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotary_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, d]; cos and sin [T, d / 2] of the tokens' positions. Computed in float32, returned in x's type."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def interleaved_rotary_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `rotary_reference`, with the pairs (x[2 i], x[2 i + 1]) of GPT-J."""
    a, b = x.float()[..., ::2], x.float()[..., 1::2]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2).to(x.dtype)


def write_cache_reference(values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """values [T, kv_heads, d] into cache [blocks, kv_heads, 16, d] at slots [T]."""
    cache[slots // BLOCK, :, slots % BLOCK] = values.to(cache.dtype)
