"""RMS norm: y = x / sqrt(mean(x²) + eps) * w, by row, in float32. Source: https://arxiv.org/abs/1910.07467."""

from __future__ import annotations

import torch


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [T, H] of any float type, weight [H]; the result has x's type."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)
