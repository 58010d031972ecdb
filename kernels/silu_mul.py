"""Gated activations of x = [g, u]. SiLU-mul: y = g / (1 + e^-g) * u; GELU-mul: y = gelu(g) * u in GELU's tanh form.

Source: https://arxiv.org/abs/2002.05202 (SwiGLU, GEGLU).
"""

from __future__ import annotations

import torch


def silu_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 I] to [T, I], same type."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def gelu_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 I] to [T, I], same type."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up
