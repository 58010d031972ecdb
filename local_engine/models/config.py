"""What a model is, in one form, whether a config.json or a GGUF header said so."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ModelError

MAX_SIZE = (1 << 31) - 1
_SIZES = ("vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder-only transformer that every family has."""

    architecture: str
    """As in config.json's `architectures`, or GGUF's `general.architecture`."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Mapping[str, Any]
    """The rotation: `rope_theta`, and how it is stretched (kernels/rope_scaling.py)."""
    max_position_embeddings: int
    """Tokens that the file names; some ways to stretch the rotation reach further (`longest_context`)."""
    tie_word_embeddings: bool
    dtype: str
    """float32, float16 or bfloat16: the type that the weights were saved in; bfloat16 for quantised ones."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What only a family understands, under config.json's names."""

    def __post_init__(self) -> None:
        """Raises `ModelError` for sizes that no model has: a corrupt header, or somebody's slip."""
        for name in _SIZES:
            value = getattr(self, name)
            if not 1 <= value <= MAX_SIZE:
                raise ModelError(f"the model's {name} is {value}, which no model has: download it again")
        if self.head_dim % 2:
            raise ModelError(f"the model's head_dim is {self.head_dim}, which halves do not divide: download it again")
        for name, number in (("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope.get("rope_theta", 1.0))):
            if not 0 <= number < math.inf:
                raise ModelError(f"the model's {name} is {number}, which no model has: download it again")

    @property
    def longest_context(self) -> int:
        """Tokens. yarn counts from what the model was trained on; other kinds that are named here from the file's number."""
        kind = self.rope.get("rope_type", self.rope.get("type"))
        factor = float(self.rope.get("factor") or 1.0)
        if kind in ("linear", "dynamic"):
            return int(self.max_position_embeddings * factor)
        if kind == "yarn":
            trained = int(self.rope.get("original_max_position_embeddings") or self.max_position_embeddings)
            return max(self.max_position_embeddings, int(trained * factor))
        return self.max_position_embeddings


def read_folder_config(folder: Path) -> ModelConfig:
    """From config.json. Raises `ModelError` when it is missing, not JSON or lacks a size."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return _from_huggingface(_text_part(values))
    except FileNotFoundError as error:
        raise ModelError(f"{folder} has no config.json: copy it from the model's repository") from error
    except (ValueError, TypeError, IndexError, ArithmeticError, AttributeError) as error:
        raise ModelError(f"{path} is not a model's configuration ({error}): download it again") from error
    except KeyError as error:
        raise ModelError(f"{path} has no {error}: download it again, or take another model") from error


TIED_UNLESS_SAID = ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
"""transformers leaves out of a configuration what is its own default: for these the head is the embedding."""
TEXT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Gemma3ForConditionalGeneration": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
    },
}
"""Models that also see, of which the text is served: what their configuration leaves out where it is transformers' default."""


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own part of a configuration that has several."""
    architecture, text = values["architectures"][0], values.get("text_config")
    if architecture not in TEXT_DEFAULTS or not isinstance(text, dict):
        return values
    outer = {
        name: values[name]
        for name in ("architectures", "dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
        if values.get(name) is not None
    }
    given = {name: item for name, item in text.items() if item is not None and name != "architectures"}
    return {**TEXT_DEFAULTS[architecture], **outer, **given}


def _from_huggingface(values: Mapping[str, Any]) -> ModelConfig:
    heads = int(values["num_attention_heads"])
    return ModelConfig(
        architecture=values["architectures"][0],
        vocab_size=int(values["vocab_size"]),
        hidden_size=int(values["hidden_size"]),
        intermediate_size=int(values["intermediate_size"]),
        layers=int(values["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or int(values["hidden_size"]) // heads),
        rms_norm_eps=float(values["rms_norm_eps"]),
        rope=_rope(values),
        max_position_embeddings=int(values["max_position_embeddings"]),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", values["architectures"][0] in TIED_UNLESS_SAID)),
        dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
        own=values,
    )


def _rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """One dictionary out of the places where configurations of different ages say it; of two rotations (Gemma 3) the one of
    layers that see everything."""
    given = values.get("rope_parameters") or values.get("rope_scaling") or {}
    given = given.get("full_attention", given)
    outside = {
        name: values[name]
        for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
        if values.get(name) is not None
    }
    return {"rope_theta": 10000.0, **outside, **{name: item for name, item in given.items() if item is not None}}
