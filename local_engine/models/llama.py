"""Llama 2 and 3.x, SmolLM2: pre-norm blocks of grouped-query attention with rotary positions and a SwiGLU feed-forward.

Sources: arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783.
"""

from __future__ import annotations

from .config import ModelConfig
from .family import Family, check_activation, layer_windows


def llama(config: ModelConfig) -> Family:
    """A GGUF of architecture `llama` may also be a Mistral: it may then name a window, for every layer."""
    check_activation(config, "silu", "hidden_act")
    return Family(windows=layer_windows(config, [True] * config.layers))
