"""RMS norm: y = x / sqrt(mean(x²) + eps) * w, by row, in float32. Source: https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

import torch


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float, *, unit_offset: bool = False) -> torch.Tensor:
    """x [T, H] of any float type, weight [H]; the result has x's type. `unit_offset`: Gemma's factor 1 + w, in float32.

    A weight in float32 is multiplied before the result is rounded to x's type, one in x's type after it.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (wide * scale * (1.0 + weight.float())).to(x.dtype)
    if weight.dtype == torch.float32:
        return (wide * scale * weight).to(x.dtype)
    return weight * (wide * scale).to(x.dtype)
