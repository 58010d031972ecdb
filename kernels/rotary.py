"""Rotary position embedding (halves, as Hugging Face's Llama has it) and the write of keys and values into the cache.

With a = x[i], b = x[i + d/2] and the angle t = position * f_i:  a' = a cos t - b sin t,  b' = b cos t + a sin t.
Source: https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import torch

from .batch import BLOCK
from .fp8 import to_fp8
from .rope_scaling import Rotation


def rotary_tables(turn: Rotation, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [positions, head_dim / 2], times the rotation's magnitude (pairs at rest stay as they are)."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), turn.frequencies)
    magnitude = torch.where(turn.frequencies > 0, turn.magnitude, 1.0)
    return angles.cos() * magnitude, angles.sin() * magnitude


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


def write_cache_reference(
    values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scales: torch.Tensor | None = None
) -> None:
    """values [T, kv_heads, d] into cache [blocks, kv_heads, 16, d] at slots [T]; with `scales` [kv_heads] in fp8."""
    kept = values.to(cache.dtype) if scales is None else to_fp8(values, scales[:, None])
    cache[slots // BLOCK, :, slots % BLOCK] = kept
