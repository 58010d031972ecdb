"""y = (x Wᵀ) s: int8 weights widened as they are read, one scale per output applied to the finished sum.

Reads half the bytes of 16-bit weights, so a decoding step, which waits for memory, takes half the time.
Shapes and reference: kernels/quantised.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .configs import BF16_DOT, interpreted, matmul_tiles


@triton.jit
def _int8_linear(
    x, x_stride, weight, weight_stride, scales, out, out_stride, rows, outputs, inputs,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    column = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)
    sums = tl.zeros([M, N], tl.float32)
    for start in range(0, inputs, K):
        inner = start + tl.arange(0, K)
        a = tl.load(
            x + row[:, None] * x_stride + inner[None, :],
            mask=(row < rows)[:, None] & (inner < inputs)[None, :], other=0.0,
        )  # fmt: skip
        w = tl.load(
            weight + column[None, :] * weight_stride + inner[:, None],
            mask=(column < outputs)[None, :] & (inner < inputs)[:, None], other=0,
        )  # fmt: skip
        sums += tl.dot(a, w.to(a.dtype), input_precision="ieee")
    sums *= tl.load(scales + column, mask=column < outputs, other=0.0)[None, :]
    inside = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out + row[:, None] * out_stride + column[None, :], sums.to(out.dtype.element_ty), mask=inside)


def int8_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """x [M, K], weight int8 [N, K], scales float32 [N], out [M, N] of x's type."""
    assert not (interpreted() and x.dtype == torch.bfloat16), BF16_DOT
    rows, inputs = x.shape
    outputs = weight.shape[0]
    if not rows:
        return
    tiles = matmul_tiles(x.device, rows)
    _int8_linear[(triton.cdiv(outputs, tiles.n), triton.cdiv(rows, tiles.m))](
        x, x.stride(0), weight, weight.stride(0), scales, out, out.stride(0), rows, outputs, inputs,
        M=tiles.m, N=tiles.n, K=tiles.k, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
