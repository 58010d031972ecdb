"""Phi-3, Phi-3.5 and Phi-4: Llama with its matrices joined in the file, and longrope. Source: arXiv:2404.14219."""

from __future__ import annotations

from .config import ModelConfig
from .family import Family, Names, check_activation, layer_windows


def phi3(config: ModelConfig) -> Family:
    check_activation(config, "silu", "hidden_act")
    return Family(
        names=Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        windows=layer_windows(config, [True] * config.layers),
    )
