"""Unified paged attention: prefill, decode and both in one launch.

    out = softmax(cap(q Kᵀ scale) + mask) V        cap(s) = c tanh(s / c), where a softcap c is given

A work item is a run of query tokens of one sequence. The M dimension of a program holds (token, query head of one KV head)
pairs, so that a decoding sequence of a grouped-query model still fills a tile and each key is read once for its whole group.
Softmax is online (https://arxiv.org/abs/2205.14135). With few long sequences the keys of an item are cut into SPLITS parts
whose results a second kernel joins (https://crfm.stanford.edu/2023/10/12/flashdecoding.html).

Keys lie in pages of 16 tokens, found through block tables (https://arxiv.org/abs/2309.06180). No slot outside a token's own
range is read: it may hold another sequence's NaN, and before the window the page may be somebody else's. All offsets into
the cache are 64 bits wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import triton
import triton.language as tl

from ..batch import BLOCK, StepLayout
from ..fp8 import CacheScales
from .configs import BF16_DOT, Tiles, attention_tiles, interpreted, splits_for
from .write_cache import scales_of

MOST_SPLIT = 256
"""Tokens of a step whose keys may be read in parts: more would make the parts large, and have programs enough."""


@triton.jit
def _tiles_of(split, position, last, WINDOW: tl.constexpr, SPLITS: tl.constexpr, N: tl.constexpr):
    """The first key that the item's first token sees, and the tiles of keys that are this part's: from one to before another."""
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW + 1, 0)
    tile = begin // N
    tiles = (last + N - 1) // N - tile
    each = (tiles + SPLITS - 1) // SPLITS
    start = tile + split * each
    return begin, start, tl.minimum(start + each, tile + tiles)


@triton.jit
def _scores(query, keys, key, own, allowed, scale, softcap, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr):
    """cap(q Kᵀ scale), -inf where it is not `allowed` or the mask forbids it."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee").to(tl.float32) * scale
    if SOFTCAP:
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    seen = (key[None, :] <= own[:, None]) & allowed
    if WINDOW > 0:
        seen = seen & (key[None, :] > own[:, None] - WINDOW)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _take_in(scores, values, best, total, sums):
    """The online softmax, one tile of keys further."""
    higher = tl.maximum(best, tl.max(scores, axis=1))
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp(scores - shift[:, None])
    fade = tl.exp(best - shift)
    total = total * fade + tl.sum(weights, axis=1)
    sums = sums * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee").to(tl.float32)
    return higher, total, sums


@triton.jit
def _attend(
    q, q_token, q_head, k_cache, v_cache, block_stride, head_stride, row_stride, tables, table_stride, entry_stride, items,
    out, out_token, out_head, part_sums, part_best, k_scales, v_scales, scale, softcap, size,
    GROUP: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SPLITS: tl.constexpr, UPCAST: tl.constexpr,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    item = items + tl.program_id(0) * 4
    sequence = tl.load(item).to(tl.int64)
    first = tl.load(item + 1).to(tl.int64)
    count = tl.load(item + 2)
    position = tl.load(item + 3)

    row = tl.arange(0, M)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    column = tl.arange(0, SIZE)
    live = token < count
    inside = live[:, None] & (column < size)[None, :]
    at = (first + token)[:, None]
    query = tl.load(q + at * q_token + head[:, None] * q_head + column[None, :], mask=inside, other=0.0)
    if SCALED:
        scale *= tl.load(k_scales + kv_head)

    last = position + count
    begin, start, stop = _tiles_of(split, position, last, WINDOW, SPLITS, N)
    best = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, SIZE], tl.float32)
    for number in range(start, stop):
        key = number * N + tl.arange(0, N)
        readable = (key < last) & (key >= begin)
        entry = tables + sequence * table_stride + key // ROWS * entry_stride
        page = tl.load(entry, mask=readable, other=0).to(tl.int64)
        place = page * block_stride + kv_head * head_stride + (key % ROWS) * row_stride
        wanted = readable[:, None] & (column < size)[None, :]
        keys = tl.load(k_cache + place[:, None] + column[None, :], mask=wanted, other=0.0)
        values = tl.load(v_cache + place[:, None] + column[None, :], mask=wanted, other=0.0)
        if UPCAST:
            keys = keys.to(tl.float32).to(query.dtype)
            values = values.to(tl.float32).to(query.dtype)
        allowed = readable[None, :] & live[:, None]
        scores = _scores(query, keys, key, position + token, allowed, scale, softcap, WINDOW, SOFTCAP)
        best, total, sums = _take_in(scores, values, best, total, sums)

    if SPLITS == 1:
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        if SCALED:
            result *= tl.load(v_scales + kv_head)
        target = out + at * out_token + head[:, None] * out_head + column[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=inside)
    else:
        # Parts are [tokens, heads, SPLITS] rows: unnormalised sums, and (best, total) side by side.
        heads = tl.num_programs(1) * GROUP
        part = ((first + token) * heads + head) * SPLITS + split
        tl.store(part_sums + part[:, None] * size + column[None, :], sums, mask=inside)
        tl.store(part_best + part * 2, best, mask=live)
        tl.store(part_best + part * 2 + 1, total, mask=live)


@triton.jit
def _join(
    part_sums, part_best, out, out_token, out_head, v_scales, size,
    GROUP: tl.constexpr, SCALED: tl.constexpr, SPLITS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = (token * tl.num_programs(1) + head) * SPLITS + tl.arange(0, SPLITS)
    column = tl.arange(0, SIZE)
    best = tl.load(part_best + part * 2)
    total = tl.load(part_best + part * 2 + 1)
    fade = tl.exp(best - tl.max(best, axis=0))  # a part without a key has best -inf, and weighs nothing
    inside = (column < size)[None, :]
    sums = tl.load(part_sums + part[:, None] * size + column[None, :], mask=inside, other=0.0)
    result = tl.sum(sums * fade[:, None], axis=0) / tl.sum(total * fade, axis=0)
    if SCALED:
        result *= tl.load(v_scales + head // GROUP)
    tl.store(out + token * out_token + head * out_head + column, result.to(out.dtype.element_ty), mask=column < size)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How one step is cut into programs; the same for all its layers. `items` int32 [n, 4] on the device: sequence, first
    token in the batch, tokens (0: padding), position of the first."""

    items: torch.Tensor
    tokens: int
    tiles: Tiles
    splits: int


def plan_attention(layout: StepLayout, heads: int, kv_heads: int, window: int | None = None) -> AttentionPlan:
    """Work items of a step, the longest first, and the number of parts."""
    device, group = layout.block_tables.device, heads // kv_heads
    decode = layout.tokens == layout.sequences
    tiles = attention_tiles(device, decode=decode)
    rows = max(tiles.m, triton.next_power_of_2(group))
    tiles = Tiles(rows, tiles.n, 0, tiles.warps, tiles.stages)
    per_item = rows // group
    splits = _splits(layout, kv_heads, window, tiles, per_item)
    if layout.decoding is not None:
        return AttentionPlan(layout.decoding, layout.tokens, tiles, splits)
    items: list[tuple[int, int, int, int]] = []
    for sequence, context in enumerate(layout.context):
        start, stop = layout.query_start[sequence], layout.query_start[sequence + 1]
        position = context - (stop - start)
        for at in range(start, stop, per_item):
            items.append((sequence, at, min(per_item, stop - at), position + at - start))
    items.sort(key=lambda item: -item[2] * (item[3] + item[2]))
    host = torch.tensor(items, dtype=torch.int32)
    if device.type == "cuda":
        host = host.pin_memory().to(device, non_blocking=True)
    return AttentionPlan(host, layout.tokens, tiles, splits)


def _splits(layout: StepLayout, kv_heads: int, window: int | None, tiles: Tiles, per_item: int) -> int:
    if layout.tokens > MOST_SPLIT:
        return 1
    counts = (stop - start for start, stop in pairwise(layout.query_start))
    programs = kv_heads * sum(-(-count // per_item) for count in counts)
    longest = max(layout.context, default=0)
    return splits_for(layout.block_tables.device, programs, -(-min(longest, window or longest) // tiles.n))


def paged_attention(
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    plan: AttentionPlan,
    scale: float,
    out: torch.Tensor,
    *,
    window: int | None = None,
    softcap: float | None = None,
    scales: CacheScales | None = None,
) -> None:
    """q, out [T, heads, d] (a head's values side by side), caches [blocks, kv_heads, 16, d] of q's type or fp8, block_tables
    [S, n]; d up to 256. `window`: keys that a token sees, itself included. `scales`: of fp8 caches. Writes out's first T
    tokens.
    """
    k_cache, v_cache = caches
    heads, size, kv_heads = q.shape[1], q.shape[2], k_cache.shape[1]
    assert (
        size <= 256 and q.stride(2) == out.stride(2) == k_cache.stride(3) == 1 and k_cache.stride() == v_cache.stride()
    )
    assert not (interpreted() and q.dtype == torch.bfloat16), BF16_DOT
    if not plan.tokens:
        return
    tiles, splits = plan.tiles, plan.splits
    sums = best = out  # unused with one part
    if splits > 1:
        sums = torch.empty(plan.tokens * heads * splits * size, dtype=torch.float32, device=q.device)
        best = torch.empty(plan.tokens * heads * splits * 2, dtype=torch.float32, device=q.device)
    padded = max(16, triton.next_power_of_2(size))
    _attend[(len(plan.items), kv_heads, splits)](
        q, q.stride(0), q.stride(1), k_cache, v_cache, k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        block_tables, *block_tables.stride(), plan.items, out, out.stride(0), out.stride(1), sums, best,
        *scales_of(scales, out), scale, softcap or 1.0, size,
        GROUP=heads // kv_heads, WINDOW=window or 0, SOFTCAP=softcap is not None, SPLITS=splits,
        UPCAST=k_cache.dtype != q.dtype, SCALED=scales is not None, ROWS=BLOCK, M=tiles.m, N=tiles.n, SIZE=padded,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if splits > 1:
        _join[(plan.tokens, heads)](
            sums, best, out, out.stride(0), out.stride(1), scales_of(scales, out)[1], size,
            GROUP=heads // kv_heads, SCALED=scales is not None, SPLITS=splits, SIZE=padded, num_warps=4,
        )  # fmt: skip
