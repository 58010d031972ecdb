"""Mixtures of experts: Mixtral, and Qwen3-MoE (Qwen3 with experts). A token takes few of many feed-forwards.

Sources: arXiv:2401.04088, arXiv:2505.09388.
"""

from __future__ import annotations

from .config import ModelConfig
from .family import Family, Mixture, check_activation, layer_windows
from .qwen import HEAD_NORMS, qwen_windows


def mixtral(config: ModelConfig) -> Family:
    check_activation(config, "silu", "hidden_act")
    return Family(
        windows=layer_windows(config, [True] * config.layers),
        mixture=Mixture(
            layers=frozenset(range(config.layers)),
            router="block_sparse_moe.gate",
            experts="block_sparse_moe.experts",
            gate="w1",
            up="w3",
            down="w2",
            count=int(config.own["num_local_experts"]),
            top_k=int(config.own["num_experts_per_tok"]),
            normalise=True,
            inner_size=config.intermediate_size,
        ),
    )


def qwen3_moe(config: ModelConfig) -> Family:
    """Every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`."""
    check_activation(config, "silu", "hidden_act")
    every, plain = int(config.own.get("decoder_sparse_step", 1)), config.own.get("mlp_only_layers") or ()
    sparse = [layer for layer in range(config.layers) if layer not in plain and (layer + 1) % every == 0]
    return Family(
        names=HEAD_NORMS,
        windows=qwen_windows(config),
        mixture=Mixture(
            layers=frozenset(sparse),
            router="mlp.gate",
            experts="mlp.experts",
            gate="gate_proj",
            up="up_proj",
            down="down_proj",
            count=int(config.own.get("num_experts") or config.own["num_local_experts"]),
            top_k=int(config.own["num_experts_per_tok"]),
            normalise=bool(config.own.get("norm_topk_prob", False)),
            inner_size=int(config.own["moe_intermediate_size"]),
        ),
    )
