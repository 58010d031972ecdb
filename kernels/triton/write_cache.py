"""Writing keys and values into the paged cache: cache[slot // 16, head, slot % 16] = value.

A cache in fp8 holds value / scale, with a scale for each head. A slot of -1 is padding: its token is not written. Slots and
offsets are 64 bits wide: a pool may have more than 2^31 values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..batch import BLOCK
from ..fp8 import FP8_LARGEST, CacheScales
from .configs import interpreted
from .fp8_cast import as_fp8


@triton.jit
def _write(
    keys, key_token, key_head, values, value_token, value_head, k_cache, v_cache, slots,
    block_stride, head_stride, row_stride, size, k_scales, v_scales,
    FP8: tl.constexpr, LARGEST: tl.constexpr, ROUND: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    column = tl.arange(0, SIZE)
    inside = column < size
    key = tl.load(keys + token * key_token + head * key_head + column, mask=inside, other=0.0)
    value = tl.load(values + token * value_token + head * value_head + column, mask=inside, other=0.0)
    if FP8:
        key = as_fp8(tl.div_rn(key.to(tl.float32), tl.load(k_scales + head)), LARGEST, ROUND)
        value = as_fp8(tl.div_rn(value.to(tl.float32), tl.load(v_scales + head)), LARGEST, ROUND)
    target = (slot // ROWS) * block_stride + head * head_stride + (slot % ROWS) * row_stride + column
    tl.store(k_cache + target, key.to(k_cache.dtype.element_ty), mask=inside)
    tl.store(v_cache + target, value.to(v_cache.dtype.element_ty), mask=inside)


def scales_of(scales: CacheScales | None, unused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments for a kernel: a tensor it will not read stands for scales that there are none of."""
    return (unused, unused) if scales is None else (scales.keys, scales.values)


def write_cache(
    keys: torch.Tensor,
    values: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    scales: CacheScales | None = None,
) -> None:
    """keys, values [T, kv_heads, d] (heads contiguous); caches [blocks, kv_heads, 16, d]; slots [T] int64."""
    tokens, heads, size = keys.shape
    k_cache, v_cache = caches
    assert k_cache.stride() == v_cache.stride() and k_cache.stride(3) == keys.stride(2) == values.stride(2) == 1
    assert (scales is not None) == (k_cache.dtype == torch.float8_e4m3fn), "fp8 caches, and only they, have scales"
    if not tokens:
        return
    _write[(tokens, heads)](
        keys, keys.stride(0), keys.stride(1), values, values.stride(0), values.stride(1), k_cache, v_cache, slots,
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), size, *scales_of(scales, keys),
        FP8=scales is not None, LARGEST=FP8_LARGEST, ROUND=interpreted(), ROWS=BLOCK,
        SIZE=triton.next_power_of_2(size), num_warps=1,
    )  # fmt: skip
