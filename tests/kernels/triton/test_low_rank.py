"""Low-rank adapters of many sequences in one step beside plain torch and float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.batch import StepLayout
from kernels.low_rank import AdapterPairs, LowRank, adapt_rows
from kernels.triton.low_rank import launch_adapt, plan_adapters

from .closeness import assert_as_close

INPUTS, OUTPUTS = 72, 40


def pairs_of(ranks: dict[int, int], dtype: torch.dtype) -> AdapterPairs:
    random = torch.Generator().manual_seed(5)
    return AdapterPairs(
        {
            slot: LowRank(
                torch.randn(rank, INPUTS, generator=random).to(dtype),
                torch.randn(OUTPUTS, rank, generator=random).to(dtype),
            )
            for slot, rank in ranks.items()
        }
    )


def layout_of(counts: list[int], adapters: list[int | None]) -> StepLayout:
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    rows = torch.zeros(starts[-1], dtype=torch.int64)
    return StepLayout(starts, counts, rows, rows, torch.zeros(len(counts), 1, dtype=torch.int64), tuple(adapters))


def check(
    counts: list[int], adapters: list[int | None], ranks: dict[int, int], dtype: torch.dtype, splits: int = 1
) -> None:
    layout, pairs = layout_of(counts, adapters), pairs_of(ranks, dtype)
    random = torch.Generator().manual_seed(6)
    x = torch.randn(layout.tokens, INPUTS, generator=random).to(dtype)
    before = torch.randn(layout.tokens, OUTPUTS, generator=random).to(dtype)
    untouched = [
        row for number, slot in enumerate(adapters) if slot not in ranks
        for row in range(layout.query_start[number], layout.query_start[number + 1])
    ]  # fmt: skip
    before[untouched] = float("nan")  # whatever stands in a row without an adapter stays
    out, plain, exact = before.clone(), before.clone(), before.double()
    adapt_rows(x, pairs, layout.rows_by_adapter(), plain)
    wide = AdapterPairs()
    for slot in ranks:
        pair = pairs.get(slot)
        assert pair is not None
        wide.add(slot, LowRank(pair.a.double(), pair.b.double()))
    adapt_rows(x.double(), wide, layout.rows_by_adapter(), exact)
    stacked = pairs.stacked()
    assert stacked is not None
    launch_adapt(x, stacked, plan_adapters(layout), out, splits)
    assert bool(out[untouched].isnan().all())
    assert_as_close(out.nan_to_num(0.0), plain.nan_to_num(0.0), exact.nan_to_num(0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [1, 2])
def test_each_row_gets_what_its_own_adapter_adds(dtype: torch.dtype, splits: int) -> None:
    check([1, 18, 1, 3, 1], [4, 1, None, 4, 7], {1: 16, 4: 5}, dtype, splits)  # 7 changes other matrices, not this one


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    slots=st.lists(st.sampled_from([None, 0, 2, 9]), min_size=4, max_size=4),
    rank=st.integers(1, 40),
)
def test_any_ragged_batch_is_as_close_as_plain_torch(counts: list[int], slots: list[int | None], rank: int) -> None:
    slots = [0, *slots[1 : len(counts)]]
    check(counts, slots, {0: rank, 2: 3}, torch.float32)


def test_items_cover_every_adapted_row_once_and_mix_no_adapters() -> None:
    plan = plan_adapters(layout_of([17, 1, 2, 1], [3, None, 8, 3]))
    assert plan.rows.tolist() == [*range(17), 20, 18, 19]
    assert plan.items.tolist() == [[3, 0, 16], [3, 16, 2], [8, 18, 2]]


def test_pairs_are_kept_once_and_stacked_anew_when_they_change() -> None:
    pairs = pairs_of({2: 4, 5: 8}, torch.float32)
    stacked = pairs.stacked()
    assert stacked is not None and pairs.stacked() is stacked
    assert stacked.places.tolist() == [-1, -1, 0, -1, -1, 1]
    kept = pairs.get(5)
    assert kept is not None and kept.a.untyped_storage().data_ptr() == stacked.a.untyped_storage().data_ptr()
    pairs.remove(2)
    again = pairs.stacked()
    assert again is not None and again.places.tolist() == [-1, -1, -1, -1, -1, 0]
    assert torch.equal(again.a[0], kept.a) and torch.equal(again.b[0], kept.b)
    pairs.remove(5)
    assert pairs.stacked() is None
