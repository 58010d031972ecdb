"""Unified paged attention beside plain torch and float64: prefill, decode and mixed steps, heads of every kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.batch import StepLayout
from kernels.fp8 import CacheScales, to_fp8
from kernels.paged_attention import paged_attention_reference
from kernels.triton.attention import paged_attention, plan_attention

from ..layouts import mixed
from .closeness import assert_as_close, poisoned

BLOCKS = 12


def inputs(
    layout: StepLayout, heads: int, kv_heads: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Queries inside a wider qkv row, and caches in which every slot that no sequence owns is NaN."""
    random = torch.Generator().manual_seed(11)
    qkv = torch.randn(layout.tokens, heads + 2 * kv_heads, size, generator=random).to(dtype)
    caches = [torch.randn(BLOCKS, kv_heads, 16, size, generator=random).to(dtype) for _ in range(2)]
    foreign = torch.ones(BLOCKS, 16, dtype=torch.bool)
    for table, context in zip(layout.block_tables, layout.context, strict=True):
        for position in range(context):
            foreign[table[position // 16], position % 16] = False
    for cache in caches:
        cache.transpose(1, 2)[foreign] = float("nan")
    return qkv[:, :heads], (caches[0], caches[1])


def check(
    layout: StepLayout,
    heads: int,
    kv_heads: int,
    size: int,
    dtype: torch.dtype,
    *,
    window: int | None = None,
    softcap: float | None = None,
    splits: int = 1,
) -> None:
    q, caches = inputs(layout, heads, kv_heads, size, dtype)
    out = poisoned(layout.tokens, heads, size, dtype=dtype)
    plan = replace(plan_attention(layout, heads, kv_heads, window), splits=splits)
    scale = size**-0.5
    paged_attention(q, caches, layout.block_tables, plan, scale, out, window=window, softcap=softcap)
    plain = paged_attention_reference(q, *caches, layout, scale, window=window, softcap=softcap, wide=dtype)
    wide = q.double(), caches[0].double(), caches[1].double()
    exact = paged_attention_reference(*wide, layout, scale, window=window, softcap=softcap, wide=torch.float64)
    assert_as_close(out, plain, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "shares",
    [
        pytest.param([(0, 1), (15, 1), (16, 1), (40, 1)], id="decode"),
        pytest.param([(0, 17), (0, 1)], id="prefill"),
        pytest.param([(40, 1), (0, 9), (16, 5)], id="mixed"),
    ],
)
@pytest.mark.parametrize("heads, kv_heads, size", [(6, 2, 16), (2, 2, 24)])
def test_every_kind_of_step_is_as_close_as_plain_torch(
    shares: list[tuple[int, int]], heads: int, kv_heads: int, size: int, dtype: torch.dtype
) -> None:
    check(mixed(shares, BLOCKS), heads, kv_heads, size, dtype)


@pytest.mark.parametrize("window", [1, 16, 21])
def test_a_window_counts_the_token_itself(window: int) -> None:
    check(mixed([(40, 1), (20, 6)], BLOCKS), 4, 2, 16, torch.float32, window=window)


def test_pages_before_the_window_are_not_read() -> None:
    layout = mixed([(60, 1)], BLOCKS)
    q, caches = inputs(layout, 2, 1, 16, torch.float32)
    for cache in caches:  # given back, and written by somebody else
        cache[layout.block_tables[0, :2]] = float("nan")
    out = poisoned(1, 2, 16, dtype=torch.float32)
    paged_attention(q, caches, layout.block_tables, plan_attention(layout, 2, 1, 20), 0.25, out, window=20)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_a_softcap_bounds_the_scores(softcap: float) -> None:
    check(mixed([(20, 1), (0, 6)], BLOCKS), 4, 2, 16, torch.float32, softcap=softcap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [2, 4])
def test_keys_read_in_parts_join_to_the_same(splits: int, dtype: torch.dtype) -> None:
    # The short one has fewer tiles than parts, so that some of its parts hold no key at all.
    check(mixed([(90, 1), (3, 1)], BLOCKS), 6, 2, 16, dtype, splits=splits)


def test_parts_inside_a_window_join_too() -> None:
    check(mixed([(90, 1), (3, 1)], BLOCKS), 2, 1, 16, torch.float32, splits=4, window=33)


def test_a_group_wider_than_a_tile_makes_the_tile_wider() -> None:
    check(mixed([(5, 1), (0, 2)], BLOCKS), 20, 1, 16, torch.float32)


def test_the_largest_head_is_256() -> None:
    check(mixed([(4, 1)], BLOCKS), 1, 1, 256, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("splits", [1, 2])
def test_an_fp8_cache_is_read_with_the_scales_of_its_heads(splits: int, dtype: torch.dtype) -> None:
    layout = mixed([(40, 1), (0, 3)], BLOCKS)
    q, caches = inputs(layout, 4, 2, 16, dtype)
    scales = CacheScales(torch.tensor([0.02, 0.5]), torch.tensor([0.01, 0.25]))
    keys, values = (
        to_fp8(cache, of_head[:, None, None])
        for cache, of_head in zip(caches, (scales.keys, scales.values), strict=True)
    )
    out = poisoned(layout.tokens, 4, 16, dtype=dtype)
    plan = replace(plan_attention(layout, 4, 2), splits=splits)
    paged_attention(q, (keys, values), layout.block_tables, plan, 0.25, out, scales=scales)
    plain = paged_attention_reference(q, keys, values, layout, 0.25, scales=scales, wide=dtype)
    exact = paged_attention_reference(q.double(), keys, values, layout, 0.25, scales=scales, wide=torch.float64)
    assert_as_close(out, plain, exact)


def test_offsets_beyond_2_to_the_31_are_reached() -> None:
    """A view whose blocks lie 2^31 values apart: the one that is read is past 32 bits. Untouched pages take no memory."""
    distance, blocks = 1 << 31, 2
    storage = torch.empty(distance + 16 * 16, dtype=torch.float16)
    cache = storage.as_strided((blocks, 1, 16, 16), (distance, 256, 16, 1))
    cache[1] = torch.arange(16, dtype=torch.float16)[:, None].expand(16, 16)
    layout = StepLayout([0, 1], [1], torch.tensor([0]), torch.tensor([16]), torch.tensor([[1]]))
    out = poisoned(1, 1, 16, dtype=torch.float16)
    cache[1, 0, 0] = 7.0
    q = torch.ones(1, 1, 16, dtype=torch.float16)
    paged_attention(q, (cache, cache), layout.block_tables, plan_attention(layout, 1, 1), 1.0, out)
    assert out.flatten().tolist() == [7.0] * 16


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    shares=st.lists(st.tuples(st.integers(0, 34), st.integers(1, 7)), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2)]),
    window=st.none() | st.integers(1, 40),
    splits=st.sampled_from([1, 2]),
)
def test_any_ragged_batch_is_as_close_as_plain_torch(
    shares: list[tuple[int, int]], heads: tuple[int, int], window: int | None, splits: int
) -> None:
    check(mixed(shares, BLOCKS), *heads, 16, torch.float32, window=window, splits=splits)


def test_work_items_cover_every_token_once_with_the_longest_first() -> None:
    plan = plan_attention(
        mixed([(40, 1), (0, 37), (3, 1)], BLOCKS), 4, 2
    )  # tiles of 16 rows: 8 tokens for each pair of heads
    assert plan.items.tolist() == [
        *([1, 25, 8, 24], [1, 17, 8, 16], [1, 33, 5, 32], [1, 9, 8, 8], [1, 1, 8, 0]),
        *([0, 0, 1, 40], [2, 38, 1, 3]),
    ]
