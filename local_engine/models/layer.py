"""One block's weights, and how they come out of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.low_rank import AdapterPairs
from kernels.operations import Experts, Matrix, Operations
from kernels.quantised_weight import Weight

from ..errors import ModelError
from ..parallel.cut import Cut
from ..parallel.shard import Shard
from ..weights.source import WeightSource
from .config import ModelConfig
from .family import Family, Mixture


@dataclass(frozen=True, slots=True)
class Linear:
    """`names` and `sizes` (outputs) of the file's matrices that are joined in it, and their `inputs`; `order`: the rows of these
    that it has, if not all as they lie; `columns`: the inputs, if not all."""

    weight: Matrix
    bias: torch.Tensor | None
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    inputs: int
    order: NDArray[np.int64] | None
    columns: range | None = None
    adapters: AdapterPairs = field(default_factory=AdapterPairs)
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
    """Thread-safe. `head_order`: another order of the rows of each query and key head (kernels/rope_scaling.partial_order).
    `cut`: what of each matrix a rank has; None: all. Raises `ModelError`, also where quantised weights cannot be cut so."""

    def __init__(
        self,
        source: WeightSource,
        family: Family,
        operations: Operations,
        head_order: list[int] | None,
        cut: Cut | None = None,
    ) -> None:
        self._source, self._family, self._operations, self._cut = source, family, operations, cut
        self._qkv_order = _qkv_order(source.config, head_order, cut)

    def head(self) -> Matrix:
        """The output matrix: the embedding's own where the two are tied."""
        name = "model.embed_tokens" if self._source.config.tie_word_embeddings else "lm_head"
        weight = self._source.matrix(f"{name}.weight")
        return self._operations.pack([weight if self._cut is None else weight.rows(np.array(self._cut.vocabulary))])

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
            inner = self._cut.inner if self._cut is not None else None
            mlp = (
                self._linear(prefix, names.gate_up, _gate_up_order(self._source.config.intermediate_size, inner)),
                self._linear(prefix, (names.down,), columns=inner),
            )
        model = self._source.config
        attended = model.heads * model.head_dim
        qkv = self._linear(prefix, names.qkv, self._qkv_order)
        o = self._linear(prefix, (names.o,), columns=self._cut.attended if self._cut is not None else None)
        _check_sizes(qkv, attended + 2 * model.kv_heads * model.head_dim, model.hidden_size)
        _check_sizes(o, model.hidden_size, attended)
        if isinstance(mlp, tuple):
            _check_sizes(mlp[0], 2 * model.intermediate_size, model.hidden_size)
            _check_sizes(mlp[1], model.hidden_size, model.intermediate_size)
        return Layer(
            number=number,
            attention_norm=self.norm(prefix + names.attention_norm),
            qkv=qkv,
            head_norms=self._head_norms(prefix),
            o=o,
            attention_out_norm=self._optional_norm(prefix, names.attention_out_norm),
            mlp_norm=self.norm(prefix + names.mlp_norm),
            mlp=mlp,
            mlp_out_norm=self._optional_norm(prefix, names.mlp_out_norm),
        )

    def _linear(
        self,
        prefix: str,
        names: Sequence[str],
        order: NDArray[np.int64] | None = None,
        columns: range | None = None,
    ) -> Linear:
        parts = [self._source.matrix(f"{prefix}{name}.weight") for name in names]
        sizes, inputs = tuple(part.shape[0] for part in parts), parts[0].shape[1]
        biased = [self._source.has(f"{prefix}{name}.bias") for name in names]
        bias = None
        if any(biased) and (columns is None or columns.start == 0):  # added once to what the ranks sum up
            bias = torch.cat(
                [
                    self._source.vector(f"{prefix}{name}.bias") if has else torch.zeros(part.shape[0])
                    for name, has, part in zip(names, biased, parts, strict=True)
                ]
            )
        if order is not None:
            parts, at = _reordered(parts, order), torch.from_numpy(order)
            bias = bias[at] if bias is not None else None
        if columns is not None:
            parts = [_columns(prefix + name, part, columns) for name, part in zip(names, parts, strict=True)]
        return Linear(
            weight=self._operations.pack(parts),
            bias=self._operations.vector(bias, exact=True) if bias is not None else None,
            names=tuple(prefix + name for name in names),
            sizes=sizes,
            inputs=inputs,
            order=order,
            columns=columns,
        )

    def _experts(self, prefix: str, mixture: Mixture) -> Experts:
        inner = self._cut.expert_inner if self._cut is not None else None
        order = _gate_up_order(mixture.inner_size, inner)
        experts = []
        for number in range(mixture.count):
            expert = f"{mixture.experts}.{number}."
            gate_up = self._linear(prefix, (expert + mixture.gate, expert + mixture.up), order)
            down = self._linear(prefix, (expert + mixture.down,), columns=inner)
            experts.append((gate_up.weight, down.weight))
        return Experts(self._linear(prefix, (mixture.router,)).weight, experts, mixture.top_k, mixture.normalise)

    def _optional_norm(self, prefix: str, name: str | None) -> torch.Tensor | None:
        return None if name is None else self.norm(prefix + name)

    def _head_norms(self, prefix: str) -> torch.Tensor | None:
        names, config = self._family.names, self._source.config
        config = self._cut.shard.config(config) if self._cut is not None else config
        if names.query_norm is None or names.key_norm is None:
            return None
        query, key = self.norm(prefix + names.query_norm), self.norm(prefix + names.key_norm)
        return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1))).contiguous()


def _check_sizes(linear: Linear, outputs: int, inputs: int) -> None:
    """Of the whole model's matrices, joined. A kernel would read beyond a smaller one."""
    if (sum(linear.sizes), linear.inputs) != (outputs, inputs):
        raise ModelError(
            f"{', '.join(linear.names)}: {sum(linear.sizes)} x {linear.inputs} where the model's configuration says {outputs} x "
            f"{inputs}: download both again"
        )


def _qkv_order(config: ModelConfig, head_order: list[int] | None, cut: Cut | None) -> NDArray[np.int64] | None:
    """Rows of the joined query, key and value matrices: of the heads that `cut` has, each query and key head in `head_order`."""
    if head_order is None and cut is None:
        return None
    shard = cut.shard if cut is not None else Shard()
    rows: NDArray[np.int64] = np.arange((config.heads + 2 * config.kv_heads) * config.head_dim)
    queries, keys, values = np.split(rows.reshape(-1, config.head_dim), [config.heads, config.heads + config.kv_heads])
    own, own_kv = shard.heads(config), shard.kv_heads(config)
    rotated = np.concatenate([queries[own.start : own.stop], keys[own_kv.start : own_kv.stop]])
    if head_order is not None:
        rotated = rotated[:, head_order]
    return np.concatenate([rotated, values[own_kv.start : own_kv.stop]]).reshape(-1)


def _gate_up_order(width: int, inner: range | None) -> NDArray[np.int64] | None:
    """Rows of the joined gate and up matrices, each of `width` outputs."""
    return None if inner is None else np.concatenate([np.array(inner), np.array(inner) + width])


def _reordered(parts: list[Weight], order: NDArray[np.int64]) -> list[Weight]:
    """Of each part the rows that `order` has of the whole, in its order; no row moves from one part to another."""
    at = 0
    result: list[Weight] = []
    for part in parts:
        end = at + part.shape[0]
        result.append(part.rows(order[(order >= at) & (order < end)] - at))
        at = end
    return result


def _columns(name: str, part: Weight, columns: range) -> Weight:
    try:
        return part.columns(columns)
    except ValueError as error:
        raise ModelError(
            f"{name}: {error}, which its quantisation keeps together; take another --tensor-parallel-size"
        ) from error
