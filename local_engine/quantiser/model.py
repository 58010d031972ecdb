"""A model's tensors under the names of its family, in float32, as a quantiser changes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..errors import ConfigError
from ..models.family import Family
from ..models.registry import family_of
from ..weights.source import WeightSource


@dataclass(slots=True)
class Model:
    """`matrices` and `vectors` by name without `.weight` for matrices and norms, with `.bias` for biases; `linears` are the
    matrices to be quantised."""

    family: Family
    layers: int
    matrices: dict[str, torch.Tensor] = field(default_factory=dict)
    vectors: dict[str, torch.Tensor] = field(default_factory=dict)
    linears: list[str] = field(default_factory=list)


def read_model(source: WeightSource) -> Model:
    """All of it, in memory. Raises `ConfigError` for what cannot be quantised, `ModelError` for a broken file."""
    family = family_of(source.config)
    if family.mixture is not None:
        raise ConfigError(
            "models with experts cannot be quantised yet: serve them with --quantization int8, int4 or fp8"
        )
    if source.stored_as not in (None, "gguf"):
        raise ConfigError(f"these weights are {source.precision} already: quantise the plain model")
    if source.rotary_factors() is not None:
        raise ConfigError(
            "this GGUF file brings its own rotary factors: quantise the model's safetensors folder instead"
        )
    model = Model(family, source.config.layers)
    for top in ("model.embed_tokens", *(() if source.config.tie_word_embeddings else ("lm_head",))):
        model.matrices[top] = source.matrix(f"{top}.weight").dequantise().float()
    model.vectors["model.norm"] = source.vector("model.norm.weight")
    names = family.names
    norms = (names.attention_norm, names.attention_out_norm, names.mlp_norm, names.mlp_out_norm, names.query_norm,
             names.key_norm)  # fmt: skip
    for number in range(model.layers):
        prefix = f"model.layers.{number}."
        for norm in norms:
            if norm is not None:
                model.vectors[prefix + norm] = source.vector(f"{prefix}{norm}.weight")
        for linear in (*names.qkv, names.o, *names.gate_up, names.down):
            name = prefix + linear
            model.linears.append(name)
            model.matrices[name] = source.matrix(f"{name}.weight").dequantise().float()
            if source.has(f"{name}.bias"):
                model.vectors[f"{name}.bias"] = source.vector(f"{name}.bias")
    return model
