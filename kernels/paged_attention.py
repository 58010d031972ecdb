"""Paged attention: out = softmax(q Kᵀ / sqrt(d) + causal mask) V, keys and values read through block tables.

Sources: https://arxiv.org/abs/2309.06180 (paging), https://arxiv.org/abs/2305.13245 (several query heads per kv head).
"""

from __future__ import annotations

import torch

from .batch import BLOCK, StepLayout


def paged_attention_reference(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, layout: StepLayout, scale: float
) -> torch.Tensor:
    """q [T, heads, d], caches [blocks, kv_heads, 16, d] (this step's keys already written); result as q.

    One sequence after the other, gathered and in float32: the yardstick, not the fast path.
    """
    heads, kv_heads = q.shape[1], k_cache.shape[1]
    out = torch.empty_like(q)
    for number, context in enumerate(layout.context):
        start, stop = layout.query_start[number], layout.query_start[number + 1]
        blocks = layout.block_tables[number, : -(-context // BLOCK)]
        keys, values = (
            cache[blocks].transpose(1, 2).reshape(-1, kv_heads, cache.shape[-1])[:context].float().transpose(0, 1)
            for cache in (k_cache, v_cache)
        )
        keys = keys.repeat_interleave(heads // kv_heads, dim=0)
        values = values.repeat_interleave(heads // kv_heads, dim=0)
        queries = q[start:stop].float().transpose(0, 1)
        scores = queries @ keys.transpose(1, 2) * scale
        visible = torch.arange(context, device=q.device)[None, :] <= layout.positions[start:stop, None]
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[start:stop] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out
