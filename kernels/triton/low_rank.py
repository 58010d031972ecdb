"""out += (x aᵀ) bᵀ for the rows of a step that have an adapter, all adapters in two launches.

Rows are sorted by adapter and cut into items of at most M rows of one of them. `_shrink` makes x aᵀ, in float32 and in parts of
the inputs, so that a few rows have programs enough; `_expand` adds the parts, multiplies by bᵀ and adds to `out`. Every row
belongs to one item, so nothing is added by two programs. Reference and shapes: kernels/low_rank.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..batch import StepLayout
from ..low_rank import Stacked
from .configs import BF16_DOT, interpreted, matmul_tiles, splits_for

ROWS = 16
"""Of an item: the least that tensor cores take."""


@triton.jit
def _shrink(
    x, x_stride, places, slots, a, pair_stride, rows, items, parts, part_stride, rank, inputs,
    SPLITS: tl.constexpr, M: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    item = items + tl.program_id(0) * 3
    split = tl.program_id(1)
    slot = tl.load(item)
    place = tl.load(places + slot, mask=slot < slots, other=-1).to(tl.int64)
    if place < 0:
        return
    first = tl.load(item + 1)
    live = tl.arange(0, M) < tl.load(item + 2)
    at = first + tl.arange(0, M)
    row = tl.load(rows + at, mask=live, other=0).to(tl.int64)
    ranks = tl.arange(0, R)
    pair = a + place * pair_stride
    sums = tl.zeros([M, R], tl.float32)
    steps = (inputs + K - 1) // K
    each = (steps + SPLITS - 1) // SPLITS
    for step in range(split * each, tl.minimum(split * each + each, steps)):
        inner = step * K + tl.arange(0, K)
        values = tl.load(
            x + row[:, None] * x_stride + inner[None, :], mask=live[:, None] & (inner < inputs)[None, :], other=0.0
        )
        down = tl.load(
            pair + ranks[None, :] * inputs + inner[:, None],
            mask=(ranks < rank)[None, :] & (inner < inputs)[:, None], other=0.0,
        )  # fmt: skip
        sums += tl.dot(values, down, input_precision="ieee")
    target = parts + split.to(tl.int64) * part_stride + at[:, None] * R + ranks[None, :]
    tl.store(target, sums, mask=live[:, None])


@triton.jit
def _expand(
    parts, part_stride, places, slots, b, pair_stride, rows, items, out, out_stride, rank, outputs,
    SPLITS: tl.constexpr, M: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    item = items + tl.program_id(0) * 3
    slot = tl.load(item)
    place = tl.load(places + slot, mask=slot < slots, other=-1).to(tl.int64)
    if place < 0:
        return
    first = tl.load(item + 1)
    live = tl.arange(0, M) < tl.load(item + 2)
    at = first + tl.arange(0, M)
    row = tl.load(rows + at, mask=live, other=0).to(tl.int64)
    ranks = tl.arange(0, R)
    column = tl.program_id(1) * N + tl.arange(0, N)
    small = tl.zeros([M, R], tl.float32)
    for split in tl.static_range(SPLITS):
        small += tl.load(parts + split * part_stride + at[:, None] * R + ranks[None, :], mask=live[:, None], other=0.0)
    up = tl.load(
        b + place * pair_stride + column[None, :] * rank + ranks[:, None],
        mask=(ranks < rank)[:, None] & (column < outputs)[None, :], other=0.0,
    )  # fmt: skip
    inside = live[:, None] & (column < outputs)[None, :]
    target = out + row[:, None] * out_stride + column[None, :]
    before = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    added = tl.dot(small.to(up.dtype), up, input_precision="ieee")
    tl.store(target, (before + added).to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Of a step, for all its matrices: `rows` int32 [n] by adapter; `items` int32 [m, 3]: slot, first of `rows`, count."""

    rows: torch.Tensor
    items: torch.Tensor


def plan_adapters(layout: StepLayout) -> AdapterPlan:
    """For a step in which somebody has an adapter."""
    by_slot: dict[int, list[int]] = {}
    for number, slot in enumerate(layout.adapters):
        if slot is not None:
            by_slot.setdefault(slot, []).extend(range(layout.query_start[number], layout.query_start[number + 1]))
    rows: list[int] = []
    items: list[tuple[int, int, int]] = []
    for slot, own in by_slot.items():
        items += [(slot, len(rows) + at, min(ROWS, len(own) - at)) for at in range(0, len(own), ROWS)]
        rows += own
    device = layout.positions.device
    pinned = device.type == "cuda"
    return AdapterPlan(
        *(
            torch.tensor(each, dtype=torch.int32, pin_memory=pinned).to(device, non_blocking=True)
            for each in (rows, items)
        )
    )


def adapt(x: torch.Tensor, pairs: Stacked, plan: AdapterPlan, out: torch.Tensor) -> None:
    """x [T, inputs], out [T, outputs] of the pairs' type (rows may be strided); changes the rows of `plan` alone."""
    steps = triton.cdiv(x.shape[1], matmul_tiles(x.device, ROWS).k)
    launch_adapt(x, pairs, plan, out, splits_for(x.device, len(plan.items), steps))


def launch_adapt(x: torch.Tensor, pairs: Stacked, plan: AdapterPlan, out: torch.Tensor, splits: int) -> None:
    """With the inputs in `splits` parts."""
    assert not (interpreted() and x.dtype == torch.bfloat16), BF16_DOT
    rank, inputs = pairs.a.shape[1:]
    outputs, tiles = pairs.b.shape[1], matmul_tiles(x.device, ROWS)
    padded, slots = max(16, triton.next_power_of_2(rank)), len(pairs.places)
    parts = torch.empty(splits, len(plan.rows), padded, dtype=torch.float32, device=x.device)
    _shrink[(len(plan.items), splits)](
        x, x.stride(0), pairs.places, slots, pairs.a, pairs.a.stride(0), plan.rows, plan.items, parts, parts.stride(0),
        rank, inputs, SPLITS=splits, M=ROWS, R=padded, K=tiles.k, num_warps=4, num_stages=tiles.stages,
    )  # fmt: skip
    _expand[(len(plan.items), triton.cdiv(outputs, tiles.n))](
        parts, parts.stride(0), pairs.places, slots, pairs.b, pairs.b.stride(0), plan.rows, plan.items, out, out.stride(0),
        rank, outputs, SPLITS=splits, M=ROWS, R=padded, N=tiles.n, num_warps=4,
    )  # fmt: skip
