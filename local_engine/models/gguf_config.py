"""What a model is, out of a GGUF header: llama.cpp's keys, and the constants that its code has instead of a key.

Sources: gguf's constants.py for the keys; llama.cpp's conversion/ for what is written, its src/models/ for what is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ModelError
from .config import ModelConfig
from .registry import GGUF_ARCHITECTURES, unknown_architecture

if TYPE_CHECKING:
    from ..weights.gguf import GGUFTensor

GEMMA3_LOCAL_THETA = 10_000.0
SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
"""The 27B of each: scores are divided by the root of hidden_size / heads, not of head_dim. No key says so; llama.cpp knows them
by their layers."""


class _Header:
    """The values of one architecture; what is missing is named."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self._path, self._metadata = path, metadata
        self.architecture = str(metadata.get("general.architecture", ""))

    def get(self, key: str) -> Any:
        """None where there is none. A list with a value for each layer is one value if they are all the same."""
        found = self._metadata.get(f"{self.architecture}.{key}")
        if not isinstance(found, list):
            return found
        if len(set(found)) != 1:
            raise ModelError(
                f"{self._path} has layers of several sizes ({self.architecture}.{key}): that is not supported"
            )
        return found[0]

    def __getitem__(self, key: str) -> Any:
        found = self.get(key)
        if found is None:
            raise ModelError(f"{self._path} has no {self.architecture}.{key} in its header: convert the model again")
        return found

    def pattern(self, layers: int) -> list[bool] | None:
        """Layers with a window; an integer n leaves every n-th without."""
        found = self._metadata.get(f"{self.architecture}.attention.sliding_window_pattern")
        if isinstance(found, list):
            return [bool(slides) for slides in found]
        return None if found is None else [(layer + 1) % found != 0 for layer in range(layers)]


def read_gguf_config(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor]) -> ModelConfig:
    """Raises `ModelError` for an architecture that is not served, and when the header lacks a size or says what is none."""
    header = _Header(path, metadata)
    if header.architecture not in GGUF_ARCHITECTURES:
        raise unknown_architecture(header.architecture, GGUF_ARCHITECTURES)
    try:
        config = _config(header, tensors)
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise ModelError(f"{path} does not say in its header what model it is ({error}): download it again") from error
    if config.layers > len(tensors):
        raise ModelError(f"{path} has {len(tensors)} tensors for {config.layers} layers: download it again")
    return config


def _config(header: _Header, tensors: Mapping[str, GGUFTensor]) -> ModelConfig:
    heads, hidden = int(header["attention.head_count"]), int(header["embedding_length"])
    head_dim, embedding = int(header.get("attention.key_length") or hidden // heads), tensors.get("token_embd.weight")
    return ModelConfig(
        architecture=header.architecture,
        vocab_size=int(embedding.shape[0] if embedding is not None else header["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(header["feed_forward_length"]),
        layers=int(header["block_count"]),
        heads=heads,
        kv_heads=int(header.get("attention.head_count_kv") or heads),
        head_dim=head_dim,
        rms_norm_eps=float(header["attention.layer_norm_rms_epsilon"]),
        rope=_rope(header, tensors, head_dim),
        max_position_embeddings=int(header["context_length"]),
        tie_word_embeddings="output.weight" not in tensors,
        dtype="float32" if all(tensor.kind == "F32" for tensor in tensors.values()) else "bfloat16",
        own=_own(header, hidden, heads, head_dim),
    )


def _rope(header: _Header, tensors: Mapping[str, GGUFTensor], head_dim: int) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": float(header.get("rope.freq_base") or 10_000.0)}
    rotated = int(header.get("rope.dimension_count") or head_dim)
    if rotated < head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    kind, factors = str(header.get("rope.scaling.type") or "none"), tensors.get("rope_factors_long.weight")
    said = {
        "factor": header.get("rope.scaling.factor"),
        "original_max_position_embeddings": header.get("rope.scaling.original_context_length"),
    }
    if factors is not None:  # Phi-3's, with or without a type beside it
        short = tensors.get("rope_factors_short.weight")
        said |= {
            "rope_type": "longrope",
            "attention_factor": header.get("rope.scaling.attn_factor"),
            "long_factor": _numbers(factors),
            "short_factor": _numbers(short if short is not None else factors),
        }
    elif kind == "none":
        return rope
    else:
        said |= {"rope_type": kind}
    if kind == "yarn":
        said |= {name: header.get(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    return rope | {name: value for name, value in said.items() if value}


def _own(header: _Header, hidden: int, heads: int, head_dim: int) -> dict[str, Any]:
    """What only a family understands, under config.json's names."""
    layers, window = int(header["block_count"]), header.get("attention.sliding_window")
    own: dict[str, Any] = {"sliding_window": int(window) if window else None}
    if header.get("expert_count"):
        own |= {
            "num_local_experts": int(header["expert_count"]),
            "num_experts_per_tok": int(header["expert_used_count"]),
            "moe_intermediate_size": int(header.get("expert_feed_forward_length") or header["feed_forward_length"]),
            "norm_topk_prob": True,
        }
    if header.architecture in ("gemma2", "gemma3"):
        by_width = (header.architecture, layers) in SCALED_BY_WIDTH
        own |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": hidden // heads if by_width else head_dim,
            "final_logit_softcapping": header.get("final_logit_softcapping"),
        }
    if header.architecture == "gemma2":
        own["attn_logit_softcapping"] = header.get("attn_logit_softcapping")
    if header.architecture == "gemma3":
        own["rope_local_base_freq"] = float(header.get("rope.freq_base_swa") or GEMMA3_LOCAL_THETA)
    if (slides := header.pattern(layers)) is not None:
        own["layer_types"] = ["sliding_attention" if sliding else "full_attention" for sliding in slides]
    return own


def _numbers(tensor: GGUFTensor) -> list[float]:
    return [float(value) for value in np.array(tensor.dequantised()).reshape(-1)]
