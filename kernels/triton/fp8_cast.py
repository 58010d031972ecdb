"""float32 to fp8 (e4m3), clamped and rounded to nearest even, in kernels.

A GPU's cast rounds. The interpreter's (Triton 3.9) loses the carry where rounding reaches the next power of two (7.8 became 4).
There a value is first rounded in float32 to one of e4m3's: three bits of mantissa, or multiples of 2^-9 below 2^-6.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def as_fp8(x, LARGEST: tl.constexpr, ROUND: tl.constexpr):
    x = tl.clamp(x, -LARGEST, LARGEST)
    if ROUND:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
        small = (x + 24576.0) - 24576.0  # 1.5 * 2^14: float32 has multiples of 2^-9 there
        x = tl.where(tl.abs(x) < 0.015625, small, bits.to(tl.float32, bitcast=True))
    return x.to(tl.float8e4nv)
