"""What makes a family: everything in which decoder-only transformers of one kind differ from Llama.

A family is one file with a function from a `ModelConfig` to a `Family`. Biases need no word: where the file has one, it is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import ModelError
from .config import ModelConfig


@dataclass(frozen=True, slots=True)
class Names:
    """Where a layer's weights lie in the file, below `model.layers.N.`; several matrices are joined in their order."""

    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    o: str = "self_attn.o_proj"
    attention_out_norm: str | None = None
    """Of what attention adds to the residual."""
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_out_norm: str | None = None
    query_norm: str | None = None
    key_norm: str | None = None
    """RMS norms of each head, before the rotation."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """A feed-forward of experts: in layer N the router `router` and the matrices `experts`.E.gate, .up and .down."""

    layers: frozenset[int]
    router: str
    experts: str
    gate: str
    up: str
    down: str
    count: int
    top_k: int
    normalise: bool
    """The weights of the experts that a token takes sum to 1."""
    inner_size: int


@dataclass(frozen=True, slots=True)
class Family:
    names: Names = field(default_factory=Names)
    windows: tuple[int | None, ...] | None = None
    """By layer: keys that a token sees, itself included. None: every layer sees everything."""
    local_rope: dict[str, object] | None = None
    """The rotation of layers with a window, where it is another one."""
    attention_scale: float | None = None
    """None: 1 / sqrt(head_dim)."""
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    norm_offset: float = 0.0
    """Norms multiply by this plus their weight."""
    embedding_scale: float | None = None
    gelu: bool = False
    """The feed-forward's gate is GELU in its tanh form; otherwise SiLU."""
    mixture: Mixture | None = None


def layer_windows(config: ModelConfig, fallback: Sequence[bool]) -> tuple[int | None, ...] | None:
    """From `sliding_window` and `layer_types`; without the latter, layers for which `fallback` is true have it."""
    window = config.own.get("sliding_window")
    if not window or config.own.get("use_sliding_window") is False:
        return None
    kinds = config.own.get("layer_types")
    slides = [kind == "sliding_attention" for kind in kinds] if kinds else list(fallback)
    if len(slides) != config.layers:
        raise ModelError(f"config.json names {len(slides)} layer_types for {config.layers} layers: download it again")
    return tuple(int(window) if sliding else None for sliding in slides) if any(slides) else None


def check_activation(config: ModelConfig, expected: str, *keys: str) -> None:
    """Raises `ModelError` when the file asks for another activation than the family has."""
    for key in keys:
        given = config.own.get(key)
        if given is not None and given != expected:
            raise ModelError(
                f"config.json sets {key} {given!r}; models of {config.architecture} run with {expected!r} here"
            )
