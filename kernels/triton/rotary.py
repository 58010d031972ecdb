"""Rotary position embedding, in place.

A head's first `2 h` values turn in pairs by the angle of their position, the rest stays (partial rotary): the pairs are
(i, i + h) (neox) or (2 i, 2 i + 1) (interleaved, GPT-J). a' = a cos - b sin, b' = b cos + a sin.
Source: https://arxiv.org/abs/2104.09864. Scalings (linear, llama3, yarn) live in the tables: kernels/rotary.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HEADS = 4
"""Heads per program."""


@triton.jit
def _rotary(
    x, token_stride, head_stride, cos, sin, positions, heads, half,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * half + pair, mask=pair < half, other=0.0)[None, :]
    s = tl.load(sin + position * half + pair, mask=pair < half, other=0.0)[None, :]
    inside = (head < heads)[:, None] & (pair < half)[None, :]
    base = x + token * token_stride + head[:, None] * head_stride
    if INTERLEAVED:
        first = base + 2 * pair[None, :]
        second = first + 1
    else:
        first = base + pair[None, :]
        second = first + half
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(second, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty), mask=inside)
    tl.store(second, (b * c + a * s).to(x.dtype.element_ty), mask=inside)


def rotary(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, *, interleaved: bool = False
) -> None:
    """x [T, heads, d] (a head's values side by side); cos, sin float32 [positions, h] with 2 h <= d; positions [T]."""
    tokens, heads, size = x.shape
    half = cos.shape[1]
    assert x.stride(2) == 1 and 2 * half <= size, "heads must be contiguous and at least as wide as the tables"
    if not tokens:
        return
    _rotary[(tokens, triton.cdiv(heads, HEADS))](
        x, x.stride(0), x.stride(1), cos, sin, positions, heads, half,
        INTERLEAVED=interleaved, HEADS=HEADS, HALF=triton.next_power_of_2(half), num_warps=4,
    )  # fmt: skip
