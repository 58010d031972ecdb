"""The cast to fp8 inside kernels beside torch's: every value of e4m3, the ties between two of them, and beyond the largest."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.fp8 import FP8_LARGEST, to_fp8
from kernels.triton.fp8_cast import as_fp8


@triton.jit  # type: ignore[untyped-decorator]
def _cast(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(out + at, as_fp8(tl.load(x + at), 448.0, True))


def test_each_value_its_neighbours_and_the_ties_between_round_as_torch_rounds() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    known = every[every.isfinite()].sort().values
    ties = (known[1:] + known[:-1]) / 2
    edges = torch.cat((known, ties, torch.tensor([449.0, -1e6, 1e-30])))
    x = torch.cat((edges, edges * (1 + 2**-20), edges * (1 - 2**-20)))
    padded = torch.nn.functional.pad(x, (0, 2048 - len(x)))
    out = torch.zeros(2048).to(torch.float8_e4m3fn)
    _cast[(1,)](padded, out, SIZE=2048)
    assert torch.equal(out.float(), to_fp8(padded, 1.0).float())
    assert float(out.float().max()) == FP8_LARGEST
