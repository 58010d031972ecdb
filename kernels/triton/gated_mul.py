"""The gated activation: y = act(g) * u, where x = [g, u].

SiLU: g / (1 + e^-g) (https://arxiv.org/abs/2002.05202). GELU in its tanh form, with tanh z = 2 sigmoid(2 z) - 1:
g sigmoid(2 sqrt(2 / pi) (g + 0.044715 g³)) (https://arxiv.org/abs/1606.08415).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _gated_mul(x, x_stride, out, out_stride, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + width + columns, mask=inside, other=0.0)
    if GELU:
        gate *= tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        gate *= tl.sigmoid(gate)
    # Rounded before the product, as torch's own activation does.
    y = gate.to(x.dtype.element_ty).to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * out_stride + columns, y.to(out.dtype.element_ty), mask=inside)


def gated_mul(x: torch.Tensor, out: torch.Tensor, *, gelu: bool = False) -> None:
    """x [T, 2 I], out [T, I]; rows may be strided."""
    rows, width = out.shape
    if not rows:
        return
    block = min(BLOCK, triton.next_power_of_2(width))
    _gated_mul[(rows, triton.cdiv(width, block))](
        x, x.stride(0), out, out.stride(0), width, GELU=gelu, BLOCK=block, num_warps=4
    )
