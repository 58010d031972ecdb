"""Where a number lies in the CPU's KV cache: the tensors are [blocks, kv_heads, 16, head_dim], but a block's numbers lie in the
order in which the kernels (attention.py) read them.

| | keys of a block and head | values |
| --- | --- | --- |
| float32 | [head_dim, 16]: a vector holds one number of every token | [16, head_dim] |
| bfloat16 | [head_dim / 2, 16, 2]: pairs of numbers of every token | [8, head_dim, 2]: pairs of tokens |
"""

from __future__ import annotations

import torch


def arrange(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Caches whose numbers lie as their shape [blocks, kv_heads, 16, head_dim] says, in the kernels' order."""
    if keys.dtype == torch.float32:
        return keys.transpose(2, 3).contiguous().view(keys.shape), values.clone()
    blocks, heads, tokens, size = keys.shape
    pairs = keys.view(blocks, heads, tokens, size // 2, 2).transpose(2, 3)
    twos = values.view(blocks, heads, tokens // 2, 2, size).transpose(3, 4)
    return pairs.contiguous().view(keys.shape), twos.contiguous().view(values.shape)


def plain(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The reverse of `arrange`."""
    blocks, heads, tokens, size = keys.shape
    if keys.dtype == torch.float32:
        return keys.view(blocks, heads, size, tokens).transpose(2, 3).contiguous(), values.clone()
    pairs = keys.view(blocks, heads, size // 2, tokens, 2).transpose(2, 3)
    twos = values.view(blocks, heads, tokens // 2, size, 2).transpose(3, 4)
    return pairs.contiguous().view(keys.shape), twos.contiguous().view(values.shape)
