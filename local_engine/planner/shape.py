"""A model's shape, read from config.json: what its weights and its KV cache are made of, before any weight is there.

Unlike `models/config.py`, which accepts what this engine runs, this reads every decoder family whose memory we can state:
grouped-query attention, sliding windows by layer, latent attention (MLA) and mixtures of experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, ModelError

SHAPES = Path(__file__).parent.parent / "shapes"
BIASED_QKV = frozenset({"qwen2", "qwen2_moe"})
"""Families whose q, k and v always have biases, without a word in config.json."""
HEAD_NORMS = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text"})
"""Families that normalise each query and key head."""
FOUR_NORMS = frozenset({"gemma2", "gemma3", "gemma3_text"})
"""Families with norms before and after both halves of a layer."""
TIED = FOUR_NORMS
"""Families whose head is the embedding unless config.json says otherwise."""
FLOATS = {"float32": "fp32", "float16": "bf16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector and one rotary key per token, whatever the number of heads.

    Source: https://arxiv.org/abs/2405.04434, section 2.1.
    """

    kv_rank: int
    q_rank: int | None
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture's feed-forward layers: `count` routed experts and `shared` ones, from layer `first` on."""

    count: int
    intermediate: int
    shared: int
    first: int
    chosen: int
    """Routed experts that a token goes through."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    name: str
    architecture: str
    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    tied: bool
    qkv_bias: bool
    windows: tuple[int | None, ...]
    """Per layer: tokens that it looks back on, the current one included; None: all of them."""
    latent: Latent | None
    experts: Experts | None
    stored: str
    """Precision of the published weights: fp32, bf16 (or fp16), fp8 or int4."""


def read_shape(model: str) -> ModelShape:
    """MODEL as a folder, a config.json or a known name. Raises `ModelError` with the remedy."""
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ModelError(f"{path.parent} has no config.json: copy it from the model's repository")
    if path.suffix == ".gguf":
        raise ModelError(
            f"{path} is a GGUF file, which the planner does not read: give the original model's config.json"
        )
    if path.is_file():
        name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    else:
        name = known_name(model)
        path = SHAPES / f"{name}.json"
    if not path.is_file():
        raise ModelError(
            f"there is no model {model!r}: give a folder with config.json, a config.json, or one of the known names "
            f"({', '.join(known_names())})"
        )
    return _read(path, name)


def known_names() -> list[str]:
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def known_name(model: str) -> str:
    """`meta-llama/Meta-Llama-3.1-70B-Instruct` -> `llama-3.1-70b`: maker and fine-tune do not change the shape."""
    name = model.rsplit("/", 1)[-1].lower().removeprefix("meta-")
    return re.sub(r"-(instruct|chat|base|it|hf)(-\d{4})?$", "", name)


def _read(path: Path, name: str) -> ModelShape:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ModelError(f"{path} is not a model's configuration: it holds no JSON object")
        # A model for text and images keeps its language model's sizes in a part of their own.
        return parse_shape({**values, **values["text_config"]} if "text_config" in values else values, name)
    except KeyError as error:
        raise ModelError(
            f"{path} has no {error}: it is no decoder's configuration, or of a family unknown here"
        ) from error
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        raise ModelError(f"{path} is not a model's configuration ({error}): download it again") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})") from error


def parse_shape(values: Mapping[str, Any], name: str) -> ModelShape:
    """From config.json's values. Raises `ModelError`, or KeyError, ValueError or TypeError for a value that is no size."""
    heads, hidden, layers = (_size(values, key) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    family = str(values.get("model_type", ""))
    architecture = str((values.get("architectures") or [family])[0])
    shape = ModelShape(
        name=name,
        architecture=architecture,
        family=family,
        hidden=hidden,
        intermediate=_size(values, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        vocabulary=_size(values, "vocab_size"),
        max_positions=_size(values, "max_position_embeddings"),
        tied=bool(values.get("tie_word_embeddings", family in TIED)),
        qkv_bias=bool(values.get("attention_bias", False)) or family in BIASED_QKV,
        windows=_windows(values, family, layers),
        latent=_latent(values),
        experts=_experts(values),
        stored=_stored(values),
    )
    if shape.heads % shape.kv_heads:
        raise ModelError(f"{name}: {heads} query heads do not divide among {shape.kv_heads} KV heads")
    return shape


def _size(values: Mapping[str, Any], key: str) -> int:
    size = int(values[key])
    if size < 1:
        raise ValueError(f"{key} is {size}")
    return size


def _windows(values: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = values.get("sliding_window")
    if not window or not values.get("use_sliding_window", True):
        return (None,) * layers
    kinds = values.get("layer_types")
    if kinds:
        if len(kinds) != layers:
            raise ValueError(f"layer_types names {len(kinds)} layers of {layers}")
        return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
    if family.startswith("qwen"):  # Qwen2: the first max_window_layers look back on everything
        first = int(values.get("max_window_layers", 0))
        return tuple(None if layer < first else int(window) for layer in range(layers))
    every = int(values.get("sliding_window_pattern") or (2 if family == "gemma2" else 0))
    return tuple(None if every and (layer + 1) % every == 0 else int(window) for layer in range(layers))


def _latent(values: Mapping[str, Any]) -> Latent | None:
    if not values.get("kv_lora_rank"):
        return None
    rank = values.get("q_lora_rank")
    return Latent(
        kv_rank=_size(values, "kv_lora_rank"),
        q_rank=int(rank) if rank else None,
        nope_dim=_size(values, "qk_nope_head_dim"),
        rope_dim=_size(values, "qk_rope_head_dim"),
        value_dim=_size(values, "v_head_dim"),
    )


def _experts(values: Mapping[str, Any]) -> Experts | None:
    count = values.get("n_routed_experts") or values.get("num_local_experts") or values.get("num_experts")
    if not count:
        return None
    return Experts(
        count=int(count),
        intermediate=int(values.get("moe_intermediate_size") or values["intermediate_size"]),
        shared=int(values.get("n_shared_experts") or 0),
        first=int(values.get("first_k_dense_replace") or 0),
        chosen=int(values.get("num_experts_per_tok") or 2),
    )


def _stored(values: Mapping[str, Any]) -> str:
    quantised = values.get("quantization_config")
    if quantised:
        method = str(quantised.get("quant_method", "")).lower()
        if method in ("awq", "gptq") and int(quantised.get("bits", 4)) == 4:
            return "int4"
        if method in ("fp8", "fbgemm_fp8"):
            return "fp8"
        raise ConfigError(
            f"weights quantised by {method or 'an unnamed method'} are not planned for: plan the original model"
        )
    dtype = str(values.get("dtype") or values.get("torch_dtype") or "bfloat16")
    if dtype not in FLOATS:
        raise ValueError(f"dtype {dtype!r}")
    return FLOATS[dtype]
