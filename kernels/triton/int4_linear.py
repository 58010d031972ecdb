"""y = x W with W = (q - z) s, or q s + m, in AWQ's packing: eight outputs to an int32, output j in nibble 4 (j % 2) + j / 2.

With few rows the inner dimension is cut into parts, so that there are programs enough to read the weights with; the parts are
added by torch. Shapes and reference: kernels/quantised.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..quantised import NIBBLES
from .configs import BF16_DOT, interpreted, matmul_tiles, splits_for


@triton.jit
def _int4_linear(
    x, x_stride, weight, zeros, scales, out, out_stride, part_stride, rows, outputs, inputs, group,
    MINIMA: tl.constexpr, SPLITS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    column = tl.program_id(0) * N + tl.arange(0, N)
    split = tl.program_id(2)
    words = outputs // 8
    shift = ((column % 2) * 4 + (column % 8) // 2) * 4
    sums = tl.zeros([M, N], tl.float32)
    steps = (inputs + K - 1) // K
    each = (steps + SPLITS - 1) // SPLITS
    for step in range(split * each, tl.minimum(split * each + each, steps)):
        inner = step * K + tl.arange(0, K)
        a = tl.load(
            x + row[:, None] * x_stride + inner[None, :],
            mask=(row < rows)[:, None] & (inner < inputs)[None, :], other=0.0,
        )  # fmt: skip
        inside = (inner < inputs)[:, None] & (column < outputs)[None, :]
        block = (inner // group)[:, None].to(tl.int64)
        word = inner[:, None].to(tl.int64) * words + (column // 8)[None, :]
        q = (tl.load(weight + word, mask=inside, other=0) >> shift[None, :]) & 15
        s = tl.load(scales + block * outputs + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if MINIMA:
            m = tl.load(zeros + block * outputs + column[None, :], mask=inside, other=0.0)
            w = (q.to(tl.float32) * s + m.to(tl.float32)).to(a.dtype)
        else:
            z = (tl.load(zeros + block * words + (column // 8)[None, :], mask=inside, other=0) >> shift[None, :]) & 15
            w = ((q - z).to(tl.float32) * s).to(a.dtype)
        sums += tl.dot(a, w, input_precision="ieee")
    inside = (row < rows)[:, None] & (column < outputs)[None, :]
    target = out + split.to(tl.int64) * part_stride + row[:, None] * out_stride + column[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=inside)


def int4_linear(
    x: torch.Tensor, weight: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, out: torch.Tensor
) -> None:
    """x [M, K], weight int32 [K, N / 8], zeros int32 [K / group, N / 8], scales [K / group, N], out [M, N] of x's type.

    `zeros` of a float type are minima [K / group, N] instead.
    """
    assert not (interpreted() and x.dtype == torch.bfloat16), BF16_DOT
    assert weight.is_contiguous() and zeros.is_contiguous() and scales.is_contiguous()
    rows, inputs = x.shape
    outputs = weight.shape[1] * NIBBLES
    if not rows:
        return
    tiles = matmul_tiles(x.device, rows)
    grid = triton.cdiv(outputs, tiles.n), triton.cdiv(rows, tiles.m)
    splits = splits_for(x.device, grid[0] * grid[1], triton.cdiv(inputs, tiles.k)) if rows <= 16 else 1
    launch_int4(x, weight, zeros, scales, out, splits)


def launch_int4(
    x: torch.Tensor, weight: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, splits: int
) -> None:
    """With the inner dimension in `splits` parts."""
    rows, inputs = x.shape
    outputs, tiles = weight.shape[1] * NIBBLES, matmul_tiles(x.device, rows)
    target = out if splits == 1 else torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
    _int4_linear[(triton.cdiv(outputs, tiles.n), triton.cdiv(rows, tiles.m), splits)](
        x, x.stride(0), weight, zeros, scales, target, target.stride(-2), target.stride(0) if splits > 1 else 0,
        rows, outputs, inputs, inputs // scales.shape[0],
        MINIMA=zeros.is_floating_point(), SPLITS=splits,
        M=tiles.m, N=tiles.n, K=tiles.k, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if splits > 1:
        out.copy_(target.sum(dim=0))
