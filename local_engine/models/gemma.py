"""Gemma 2 and 3: norms of 1 + w before and after each half of a block, GELU, scaled embeddings, layers with and without a window.

2 caps scores and logits; 3 norms heads instead, and rotates layers with a window by another base. Sources: arXiv:2408.00118,
arXiv:2503.19786.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import ModelError
from .config import ModelConfig
from .family import Family, Names, check_activation, layer_windows

_NAMES = Names(
    attention_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out_norm="post_feedforward_layernorm",
)
_LOCAL_THETA = 10_000.0


def gemma2(config: ModelConfig) -> Family:
    """Layers 0, 2, 4, … have the window."""
    return _gemma(config, _NAMES, [layer % 2 == 0 for layer in range(config.layers)])


def gemma3(config: ModelConfig) -> Family:
    """Every sixth layer sees everything."""
    if config.own.get("use_bidirectional_attention"):
        raise ModelError("config.json sets use_bidirectional_attention: encoders are not supported")
    every = int(config.own.get("sliding_window_pattern") or 6)
    names = replace(_NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
    family = _gemma(config, names, [(layer + 1) % every != 0 for layer in range(config.layers)])
    local = (config.own.get("rope_parameters") or {}).get("sliding_attention")
    return replace(
        family,
        local_rope={"rope_theta": config.own.get("rope_local_base_freq") or _LOCAL_THETA, **(local or {})},
    )


def _gemma(config: ModelConfig, names: Names, slides: list[bool]) -> Family:
    check_activation(config, "gelu_pytorch_tanh", "hidden_activation")
    scalar = config.own.get("query_pre_attn_scalar") or config.head_dim
    return Family(
        names=names,
        windows=layer_windows(config, slides),
        attention_scale=float(scalar) ** -0.5,
        attention_softcap=config.own.get("attn_logit_softcapping"),
        logit_softcap=config.own.get("final_logit_softcapping"),
        norm_offset=1.0,
        embedding_scale=config.hidden_size**0.5,
        gelu=True,
    )
