"""Where each matrix of a model is cut for one rank."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..models.config import ModelConfig
from ..models.family import Family
from ..weights.source import WeightSource
from .shard import Shard, piece_of

VOCABULARY_PIECE = 8
"""int4 packs so many outputs into a word."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Runs of the whole model's widths: what this rank has."""

    shard: Shard
    attended: range
    """Of the inputs of attention's output matrix."""
    inner: range
    expert_inner: range
    """Of the feed-forward's inner width; of an expert's."""
    vocabulary_runs: tuple[range, ...]
    """Every rank's."""

    @property
    def vocabulary(self) -> range:
        return self.vocabulary_runs[self.shard.rank]


def cut_model(shard: Shard, source: WeightSource, family: Family) -> Cut:
    """Asks the first layer's weights how long their groups are. Raises `ConfigError` where there are too few of them."""
    model, mixture = source.config, family.mixture
    layers = range(model.layers)
    dense = next((layer for layer in layers if mixture is None or layer not in mixture.layers), None)
    sparse = next((layer for layer in layers if mixture is not None and layer in mixture.layers), None)
    inner = expert_inner = range(0)
    if dense is not None:
        inner = _inner(shard, source, model.intermediate_size, f"model.layers.{dense}.{family.names.down}.weight")
    if sparse is not None and mixture is not None:
        name = f"model.layers.{sparse}.{mixture.experts}.0.{mixture.down}.weight"
        expert_inner = _inner(shard, source, mixture.inner_size, name)
    heads = shard.heads(model)
    return Cut(
        shard,
        range(heads.start * model.head_dim, heads.stop * model.head_dim),
        inner,
        expert_inner,
        tuple(shard.runs(model.vocab_size, _vocabulary_piece(shard, model))),
    )


def _inner(shard: Shard, source: WeightSource, width: int, name: str) -> range:
    block = source.matrix(name).block
    piece = piece_of(width, shard.ranks, block)
    if -(-width // piece) < shard.ranks:
        raise ConfigError(
            f"--tensor-parallel-size {shard.ranks}: the feed-forward's inner width of {width} has {-(-width // piece)} parts "
            f"of {piece}, which is fewer than ranks; take a smaller size"
        )
    return shard.run(width, piece)


def _vocabulary_piece(shard: Shard, model: ModelConfig) -> int:
    return VOCABULARY_PIECE if model.vocab_size // VOCABULARY_PIECE >= shard.ranks else 1
