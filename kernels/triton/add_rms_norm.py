"""RMS norm, and the addition of a residual before it in the same pass.

    r <- x + r                                   (where a residual is given)
    y = r / sqrt(mean(r²) + eps) * w             (Llama), or * (1 + w) (Gemma)

One program per row, in float32. Source: https://arxiv.org/abs/1910.07467; Gemma's offset: Hugging Face's Gemma2RMSNorm.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_rms_norm(
    x, x_stride, residual, residual_stride, weight, out, out_stride, width, eps,
    ADD: tl.constexpr, UNIT_OFFSET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    stored = tl.load(x + row * x_stride + columns, mask=inside, other=0.0)
    value = stored.to(tl.float32)
    if ADD:
        value += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        # The sum is rounded to the residual's type before it is normalised: what later layers add to is what was seen here.
        rounded = value.to(residual.dtype.element_ty)
        tl.store(residual + row * residual_stride + columns, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    w = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        y = value * scale * (1.0 + w)
    else:
        y = (value * scale).to(out.dtype.element_ty).to(tl.float32) * w
    tl.store(out + row * out_stride + columns, y.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    residual: torch.Tensor | None = None,
    unit_offset: bool = False,
) -> None:
    """x, out, residual [T, H] (rows may be strided), weight [H]; writes `out` and, where given, `residual` in place."""
    rows, width = x.shape
    if not rows:
        return
    block = triton.next_power_of_2(width)
    other = x if residual is None else residual
    _add_rms_norm[(rows,)](
        x, x.stride(0), other, other.stride(0), weight, out, out.stride(0), width, eps,
        ADD=residual is not None, UNIT_OFFSET=unit_offset, BLOCK=block, num_warps=min(16, max(1, block // 256)),
    )  # fmt: skip
