"""y = (xq Wqᵀ) sx sw: activations and weights in fp8 (e4m3), sums in float32.

Scales of x [M] (one per row) or [M, ceil(K / 128)]; of W one, [N], or [ceil(N / 128), ceil(K / 128)] (DeepSeek-V3's blocks,
https://arxiv.org/abs/2412.19437, section 3.3). Scales that do not change along K are applied to the finished sum, the others
to each 128 inputs' part of it. Where the device has no fp8 product, the values are widened to float16 (exact) first.
References: kernels/fp8.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..fp8 import FP8_BLOCK
from .configs import device_kind, interpreted, matmul_tiles


@triton.jit
def _fp8_linear(
    x, x_stride, x_scales, x_scale_stride, weight, weight_stride, w_scales, w_row_stride, w_column_stride,
    out, out_stride, rows, outputs, inputs,
    BLOCKS: tl.constexpr, WIDEN: tl.constexpr, SIZE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
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
            mask=(column < outputs)[None, :] & (inner < inputs)[:, None], other=0.0,
        )  # fmt: skip
        if WIDEN:
            a = a.to(tl.float16)
            w = w.to(tl.float16)
        part = tl.dot(a, w).to(tl.float32)
        if BLOCKS:
            block = start // SIZE
            sx = tl.load(x_scales + row * x_scale_stride + block, mask=row < rows, other=0.0)
            sw = tl.load(
                w_scales + (column // SIZE) * w_row_stride + block * w_column_stride, mask=column < outputs, other=0.0
            )
            part *= sx[:, None] * sw[None, :]
        sums += part
    if not BLOCKS:
        sx = tl.load(x_scales + row * x_scale_stride, mask=row < rows, other=0.0)
        sw = tl.load(w_scales + column * w_row_stride, mask=column < outputs, other=0.0)
        sums *= sx[:, None] * sw[None, :]
    inside = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out + row[:, None] * out_stride + column[None, :], sums.to(out.dtype.element_ty), mask=inside)


def fp8_linear(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, w_scales: torch.Tensor, out: torch.Tensor
) -> None:
    """x [M, K] and weight [N, K] in float8_e4m3fn, scales float32 as above, out [M, N] of any float type."""
    rows, inputs = x.shape
    outputs = weight.shape[0]
    if not rows:
        return
    blocks = w_scales.dim() == 2
    assert x_scales.dim() == (2 if blocks else 1), "block-wise weights need group-wise activations, and only they"
    tiles = matmul_tiles(x.device, rows)
    k = min(tiles.k, FP8_BLOCK)
    generation = device_kind(x.device).generation
    _fp8_linear[(triton.cdiv(outputs, tiles.n), triton.cdiv(rows, tiles.m))](
        x, x.stride(0), x_scales, x_scales.stride(0), weight, weight.stride(0),
        w_scales, w_scales.stride(0) if w_scales.numel() > 1 else 0, w_scales.stride(1) if blocks else 0,
        out, out.stride(0), rows, outputs, inputs,
        BLOCKS=blocks, WIDEN=interpreted() or generation == "ampere", SIZE=FP8_BLOCK,
        M=tiles.m, N=tiles.n, K=k, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
