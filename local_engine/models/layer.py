"""One block's weights, and how they come out of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.operations import Experts, LowRank, Matrix, Operations
from kernels.quantised_weight import Weight

from ..weights.source import WeightSource
from .family import Family, Mixture


@dataclass(frozen=True, slots=True)
class Linear:
    """`names` and `sizes` (outputs) of the file's matrices that are joined in it; `order` of its rows, if it is another one."""

    weight: Matrix
    bias: torch.Tensor | None
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    inputs: int
    order: NDArray[np.int64] | None
    adapters: dict[int, LowRank] = field(default_factory=dict)
    """By slot (adapters.py); read at every step."""


@dataclass(frozen=True, slots=True)
class Layer:
    """None stands for what the family does not have."""

    number: int
    attention_norm: torch.Tensor
    qkv: Linear
    head_norms: torch.Tensor | None
    """[heads + kv_heads, head_dim]: of each query head, then of each key head."""
    o: Linear
    attention_out_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: tuple[Linear, Linear] | Experts
    """(gate and up, down), or experts."""
    mlp_out_norm: torch.Tensor | None


class LayerLoader:
    """Thread-safe. `head_order`: another order of the rows of each query and key head (kernels/rope_scaling.partial_order)."""

    def __init__(
        self, source: WeightSource, family: Family, operations: Operations, head_order: list[int] | None
    ) -> None:
        self._source, self._family, self._operations = source, family, operations
        self._qkv_order = _qkv_order(source, head_order) if head_order is not None else None

    def head(self) -> Matrix:
        """The output matrix: the embedding's own where the two are tied."""
        name = "model.embed_tokens" if self._source.config.tie_word_embeddings else "lm_head"
        return self._operations.pack([self._source.matrix(f"{name}.weight")])

    def norm(self, name: str) -> torch.Tensor:
        values = self._source.vector(f"{name}.weight")
        offset = self._family.norm_offset
        return self._operations.vector(values + offset, exact=True) if offset else self._operations.vector(values)

    def layer(self, number: int) -> Layer:
        names, prefix = self._family.names, f"model.layers.{number}."
        mixture = self._family.mixture
        mlp: tuple[Linear, Linear] | Experts
        if mixture is not None and number in mixture.layers:
            mlp = self._experts(prefix, mixture)
        else:
            mlp = self._linear(prefix, names.gate_up), self._linear(prefix, (names.down,))
        return Layer(
            number=number,
            attention_norm=self.norm(prefix + names.attention_norm),
            qkv=self._linear(prefix, names.qkv, self._qkv_order),
            head_norms=self._head_norms(prefix),
            o=self._linear(prefix, (names.o,)),
            attention_out_norm=self._optional_norm(prefix, names.attention_out_norm),
            mlp_norm=self.norm(prefix + names.mlp_norm),
            mlp=mlp,
            mlp_out_norm=self._optional_norm(prefix, names.mlp_out_norm),
        )

    def _linear(self, prefix: str, names: Sequence[str], order: NDArray[np.int64] | None = None) -> Linear:
        parts = [self._source.matrix(f"{prefix}{name}.weight") for name in names]
        sizes, inputs = tuple(part.shape[0] for part in parts), parts[0].shape[1]
        biased = [self._source.has(f"{prefix}{name}.bias") for name in names]
        bias = None
        if any(biased):
            bias = torch.cat(
                [
                    self._source.vector(f"{prefix}{name}.bias") if has else torch.zeros(part.shape[0])
                    for name, has, part in zip(names, biased, parts, strict=True)
                ]
            )
        if order is not None:
            parts, at = _reordered(parts, order), torch.from_numpy(order)
            bias = bias[at] if bias is not None else None
        return Linear(
            weight=self._operations.pack(parts),
            bias=self._operations.vector(bias, exact=True) if bias is not None else None,
            names=tuple(prefix + name for name in names),
            sizes=sizes,
            inputs=inputs,
            order=order,
        )

    def _experts(self, prefix: str, mixture: Mixture) -> Experts:
        def matrix(*names: str) -> Matrix:
            return self._operations.pack([self._source.matrix(f"{prefix}{name}.weight") for name in names])

        experts = []
        for number in range(mixture.count):
            expert = f"{mixture.experts}.{number}."
            gate_up, down = matrix(expert + mixture.gate, expert + mixture.up), matrix(expert + mixture.down)
            experts.append((gate_up, down))
        return Experts(matrix(mixture.router), experts, mixture.top_k, mixture.normalise)

    def _optional_norm(self, prefix: str, name: str | None) -> torch.Tensor | None:
        return None if name is None else self.norm(prefix + name)

    def _head_norms(self, prefix: str) -> torch.Tensor | None:
        names, config = self._family.names, self._source.config
        if names.query_norm is None or names.key_norm is None:
            return None
        query, key = self.norm(prefix + names.query_norm), self.norm(prefix + names.key_norm)
        return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1))).contiguous()


def _qkv_order(source: WeightSource, head_order: list[int]) -> NDArray[np.int64]:
    """Rows of the joined query, key and value matrices, with `head_order` in each query and key head."""
    config = source.config
    rows: NDArray[np.int64] = np.arange((config.heads + 2 * config.kv_heads) * config.head_dim)
    heads = rows.reshape(-1, config.head_dim)
    rotated = config.heads + config.kv_heads
    heads[:rotated] = heads[:rotated][:, head_order]
    return heads.reshape(-1)


def _reordered(parts: list[Weight], order: NDArray[np.int64]) -> list[Weight]:
    """Each part with its rows in the order that `order` has for the whole; no row moves from one part to another."""
    at = 0
    result: list[Weight] = []
    for part in parts:
        result.append(part.rows(order[at : at + part.shape[0]] - at))
        at += part.shape[0]
    return result
