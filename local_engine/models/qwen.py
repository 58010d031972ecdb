"""Qwen2, Qwen2.5 and Qwen3: Llama with biases on the queries, keys and values (2) or with norms of each head (3).

Sources: arXiv:2407.10671, arXiv:2412.15115, arXiv:2505.09388.
"""

from __future__ import annotations

from .config import ModelConfig
from .family import Family, Names, check_activation, layer_windows

HEAD_NORMS = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")


def qwen2(config: ModelConfig) -> Family:
    check_activation(config, "silu", "hidden_act")
    return Family(windows=qwen_windows(config))


def qwen3(config: ModelConfig) -> Family:
    check_activation(config, "silu", "hidden_act")
    return Family(names=HEAD_NORMS, windows=qwen_windows(config))


def qwen_windows(config: ModelConfig) -> tuple[int | None, ...] | None:
    """Only where `use_sliding_window` says so, in layers from `max_window_layers` on."""
    if not config.own.get("use_sliding_window"):
        return None
    first = int(config.own.get("max_window_layers", 0))
    return layer_windows(config, [layer >= first for layer in range(config.layers)])
