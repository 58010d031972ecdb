"""Tiny random models, saved by transformers as it saves real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}


def tiny_llama(seed: int = 3, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})).eval()


def save_tiny_llama(folder: Path, *, max_shard_size: str = "1GB", **changes: Any) -> Any:
    """Writes config.json and the weights; returns transformers' model."""
    model = tiny_llama(**changes)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):  # transformers starts them at zero
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model
