"""Paged attention: out = softmax(q Kᵀ / sqrt(d) + causal mask) V, keys and values read through block tables.

Sources: https://arxiv.org/abs/2309.06180 (paging), https://arxiv.org/abs/2305.13245 (several query heads per kv head).
"""

from __future__ import annotations

import torch

from .batch import BLOCK, StepLayout
from .fp8 import CacheScales


def paged_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    layout: StepLayout,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    scales: CacheScales | None = None,
    wide: torch.dtype = torch.float32,
) -> torch.Tensor:
    """q [T, heads, d], caches [blocks, kv_heads, 16, d] (this step's keys already written); result as q.

    `window`: keys that a token sees, itself included. `softcap` c: scores become c tanh(score / c). `scales`: of fp8 caches.
    One sequence after the other, gathered and in `wide` (float32): the yardstick, not the fast path.
    """
    heads, kv_heads = q.shape[1], k_cache.shape[1]
    out = torch.empty_like(q)
    for number, context in enumerate(layout.context):
        start, stop = layout.query_start[number], layout.query_start[number + 1]
        blocks = layout.block_tables[number, : -(-context // BLOCK)]
        keys, values = (
            cache[blocks].transpose(1, 2).reshape(-1, kv_heads, cache.shape[-1])[:context].to(wide).transpose(0, 1)
            for cache in (k_cache, v_cache)
        )
        if scales is not None:
            keys, values = keys * scales.keys[:, None, None].to(wide), values * scales.values[:, None, None].to(wide)
        keys = keys.repeat_interleave(heads // kv_heads, dim=0)
        values = values.repeat_interleave(heads // kv_heads, dim=0)
        queries = q[start:stop].to(wide).transpose(0, 1)
        scores = queries @ keys.transpose(1, 2) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        keys_at, own = torch.arange(context, device=q.device)[None, :], layout.positions[start:stop, None]
        visible = keys_at <= own
        if window is not None:
            visible &= keys_at > own - window
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[start:stop] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out
