"""Every kernel on tensors whose rows lie 2^31 values apart: offsets are 64 bits wide. Memory that nobody touches takes none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kernels.batch import StepLayout
from kernels.fp8 import row_scales, to_fp8
from kernels.low_rank import AdapterPairs, LowRank
from kernels.quantised import awq_pack
from kernels.triton.add_rms_norm import add_rms_norm
from kernels.triton.fp8_linear import fp8_linear
from kernels.triton.gated_mul import gated_mul
from kernels.triton.int4_linear import launch_int4
from kernels.triton.int8_linear import int8_linear
from kernels.triton.low_rank import launch_adapt, plan_adapters
from kernels.triton.rotary import rotary
from kernels.triton.write_cache import write_cache

FAR = 1 << 31
WIDTH = 32


@dataclass
class Rows:
    """Two rows of noise, side by side or far apart."""

    far: bool
    dtype: torch.dtype = torch.float32

    def __call__(self, width: int = WIDTH, seed: int = 1) -> torch.Tensor:
        values = torch.randn(2, width, generator=torch.Generator().manual_seed(seed)).to(self.dtype)
        if not self.far:
            return values
        rows = torch.empty(FAR + width, dtype=self.dtype).as_strided((2, width), (FAR, 1))
        rows.copy_(values)
        return rows


def norm(rows: Rows) -> torch.Tensor:
    out = rows()
    add_rms_norm(rows(), torch.ones(WIDTH), 1e-5, out, residual=rows(seed=2))
    return out


def gated(rows: Rows) -> torch.Tensor:
    out = rows()
    gated_mul(rows(2 * WIDTH), out)
    return out


def turned(rows: Rows) -> torch.Tensor:
    x, angles = rows(), torch.ones(4, 8)
    rotary(x.view(2, 2, 16), angles.cos(), angles.sin(), torch.tensor([1, 3]))
    return x


def written(rows: Rows) -> torch.Tensor:
    """Blocks of the cache, and the keys' rows, far apart."""
    caches = [torch.zeros(2, 1, 16, 16)] * 2
    if rows.far:
        caches = [torch.empty(FAR + 256).as_strided((2, 1, 16, 16), (FAR, 256, 16, 1)) for _ in "kv"]
    keys = rows(16).view(2, 1, 16)
    write_cache(keys, keys, (caches[0], caches[1]), torch.tensor([17, 3]))
    return torch.stack((caches[0][1, 0, 1], caches[1][0, 0, 3]))


def by_int8(rows: Rows) -> torch.Tensor:
    out = rows(2)
    weight = torch.zeros(2, WIDTH, dtype=torch.int8)
    if rows.far:
        weight = torch.empty(FAR + WIDTH, dtype=torch.int8).as_strided((2, WIDTH), (FAR, 1))
    weight.copy_(torch.arange(2 * WIDTH).view(2, WIDTH))
    int8_linear(rows(), weight, torch.ones(2), out)
    return out


def by_int4(rows: Rows) -> torch.Tensor:
    out = rows(8)
    weight = awq_pack(torch.arange(8 * WIDTH).view(WIDTH, 8) % 16)
    launch_int4(rows(), weight, weight[:1], torch.ones(1, 8), out, 1)
    return out


def by_fp8(rows: Rows) -> torch.Tensor:
    out = rows(4)
    x, weight = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(3)), torch.ones(4, WIDTH)
    fp8_linear(to_fp8(x, row_scales(x)[:, None]), row_scales(x), to_fp8(weight, 1.0), torch.ones(4), out)
    return out


def by_adapters(rows: Rows) -> torch.Tensor:
    out = rows(8)
    pairs = AdapterPairs({0: LowRank(torch.ones(3, WIDTH), torch.ones(8, 3))}).stacked()
    assert pairs is not None
    one = torch.zeros(2, dtype=torch.int64)
    layout = StepLayout([0, 1, 2], [1, 1], one, one, one[:, None], (0, 0))
    launch_adapt(rows(), pairs, plan_adapters(layout), out, 1)
    return out


@pytest.mark.parametrize("kernel", [norm, gated, turned, written, by_int8, by_int4, by_fp8, by_adapters])
def test_rows_far_apart_give_what_rows_side_by_side_give(kernel: Callable[[Rows], torch.Tensor]) -> None:
    assert torch.equal(kernel(Rows(far=True)), kernel(Rows(far=False)))
