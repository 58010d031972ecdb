"""Mistral: Llama whose layers may all look back on a window only. Source: arXiv:2310.06825."""

from __future__ import annotations

from .config import ModelConfig
from .family import Family, check_activation, layer_windows


def mistral(config: ModelConfig) -> Family:
    check_activation(config, "silu", "hidden_act")
    return Family(windows=layer_windows(config, [True] * config.layers))
