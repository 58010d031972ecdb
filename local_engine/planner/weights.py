"""How many bytes the weights take, in a given precision, on one of N devices.

Linear layers alone are quantised; embeddings, the head, norms, biases and routers stay in 16 (or 32) bits, as every
quantiser of AWQ, GPTQ or FP8 checkpoints leaves them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .shape import FOUR_NORMS, HEAD_NORMS, Experts, ModelShape

GROUP = 128
"""Inputs that share a scale in int4 checkpoints (AWQ's and GPTQ's usual size)."""
ROUNDED_GROUPS = {"int4-g32": 32, "int4-g64": 64, "int4-g128": 128}
"""The same where plain weights are rounded at load."""

Kind = Literal["linear", "embedding", "norm"]
Split = Literal["shared", "kv", "copied"]


@dataclass(frozen=True, slots=True)
class Part:
    """`copies` matrices (or vectors) of `outputs` x `inputs`.

    `split`: shared out among the ranks, shared out by KV heads (a rank has at least one), or on every rank whole.
    """

    name: str
    kind: Kind
    outputs: int
    inputs: int
    copies: int
    split: Split

    @property
    def parameters(self) -> int:
        return self.outputs * self.inputs * self.copies


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes on one device."""

    linear: int
    embeddings: int
    norms: int
    """With biases and routers."""

    @property
    def total(self) -> int:
        return self.linear + self.embeddings + self.norms


def parts(shape: ModelShape) -> list[Part]:
    """Every weight of the model; their `parameters` add up to the number on its card."""
    found = [Part("embedding", "embedding", shape.vocabulary, shape.hidden, 1, "shared")]
    if not shape.tied:
        found.append(Part("head", "embedding", shape.vocabulary, shape.hidden, 1, "shared"))
    found.append(Part("final norm", "norm", shape.hidden, 1, 1, "copied"))
    norms = 4 if shape.family in FOUR_NORMS else 2
    found.append(Part("layer norms", "norm", shape.hidden, 1, norms * shape.layers, "copied"))
    found += _latent_attention(shape) if shape.latent else _attention(shape)
    found += _feed_forward(shape)
    return found


def weight_bytes(shape: ModelShape, precision: str, ranks: int = 1) -> WeightBytes:
    """What one of `ranks` devices holds."""
    sums = {"linear": 0, "embedding": 0, "norm": 0}
    for part in parts(shape):
        whole = _linear_bytes(part, precision) if part.kind == "linear" else _float_bytes(part, precision)
        sums[part.kind] += _share(part, whole, shape, ranks)
    return WeightBytes(sums["linear"], sums["embedding"], sums["norm"])


def _attention(shape: ModelShape) -> Iterator[Part]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Part("q", "linear", q, shape.hidden, shape.layers, "shared")
    yield Part("k and v", "linear", kv, shape.hidden, 2 * shape.layers, "kv")
    yield Part("o", "linear", shape.hidden, q, shape.layers, "shared")
    if shape.qkv_bias:
        yield Part("q bias", "norm", q, 1, shape.layers, "shared")
        yield Part("k and v bias", "norm", kv, 1, 2 * shape.layers, "kv")
    if shape.family in HEAD_NORMS:
        yield Part("head norms", "norm", shape.head_dim, 1, 2 * shape.layers, "copied")


def _latent_attention(shape: ModelShape) -> Iterator[Part]:
    latent, layers = shape.latent, shape.layers
    assert latent is not None
    query = shape.heads * (latent.nope_dim + latent.rope_dim)
    if latent.q_rank:
        yield Part("q down", "linear", latent.q_rank, shape.hidden, layers, "copied")
        yield Part("q norm", "norm", latent.q_rank, 1, layers, "copied")
    yield Part("q", "linear", query, latent.q_rank or shape.hidden, layers, "shared")
    yield Part("kv down", "linear", latent.kv_rank + latent.rope_dim, shape.hidden, layers, "copied")
    yield Part("kv norm", "norm", latent.kv_rank, 1, layers, "copied")
    yield Part("kv up", "linear", shape.heads * (latent.nope_dim + latent.value_dim), latent.kv_rank, layers, "shared")
    yield Part("o", "linear", shape.hidden, shape.heads * latent.value_dim, layers, "shared")


def _feed_forward(shape: ModelShape) -> Iterator[Part]:
    experts = shape.experts or Experts(count=0, intermediate=0, shared=0, first=shape.layers, chosen=0)
    mixed = shape.layers - experts.first
    sizes = [
        ("feed-forward", shape.intermediate, experts.first),
        ("experts", experts.intermediate, mixed * experts.count),
        ("shared experts", experts.shared * experts.intermediate, mixed),
    ]
    for name, intermediate, copies in sizes:
        if intermediate and copies:
            yield Part(f"{name}: gate and up", "linear", intermediate, shape.hidden, 2 * copies, "shared")
            yield Part(f"{name}: down", "linear", shape.hidden, intermediate, copies, "shared")
    if experts.count:
        yield Part("router", "norm", experts.count, shape.hidden, mixed, "copied")
        if shape.latent:  # DeepSeek-V3 corrects each expert's score by a bias
            yield Part("router bias", "norm", experts.count, 1, mixed, "copied")


def _share(part: Part, whole: int, shape: ModelShape, ranks: int) -> int:
    if part.split == "copied":
        return whole
    if part.split == "kv":
        return whole * -(-shape.kv_heads // ranks) // shape.kv_heads
    return -(-whole // ranks)


def _float_bytes(part: Part, precision: str) -> int:
    return part.parameters * (4 if precision == "fp32" else 2)


def _linear_bytes(part: Part, precision: str) -> int:
    """Values and their scales: fp8 one float32 per output, int8 one bfloat16 per output, int4 a float16 scale and a 4-bit
    zero point per group (128 inputs, or 32 where the width does not divide); rounded at load, a float16 minimum instead."""
    if precision in ("fp32", "bf16"):
        return _float_bytes(part, precision)
    rows = part.outputs * part.copies
    if precision == "fp8":
        return part.parameters + 4 * rows
    if precision == "int8":
        return part.parameters + 2 * rows
    if precision in ROUNDED_GROUPS:
        groups = rows * (part.inputs // math.gcd(part.inputs, ROUNDED_GROUPS[precision]))
        return part.parameters // 2 + 4 * groups
    assert precision == "int4", precision
    groups = rows * -(-part.inputs // (GROUP if part.inputs % GROUP == 0 else 32))
    return part.parameters // 2 + (5 * groups + 1) // 2
