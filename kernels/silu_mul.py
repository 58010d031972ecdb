"""SiLU-mul: y = g / (1 + e^-g) * u, where x = [g, u]. Source: https://arxiv.org/abs/2002.05202 (SwiGLU)."""

from __future__ import annotations

import torch


def silu_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 I] to [T, I], same type."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
