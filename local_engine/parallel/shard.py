"""Which part of a model a rank holds, and whether a model can be split so (https://arxiv.org/abs/1909.08053).

A rank has whole query heads and the KV heads that they read, so attention needs no other rank; a run of the feed-forward's inner
width, in whole groups of quantised weights; and a run of the vocabulary. Of the two matrices around attention and around the
feed-forward's inner width the first is cut by outputs and the second by inputs: what the second gives is a part of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ConfigError
from ..models.config import ModelConfig

PIECE = 32
"""Inputs of a matrix that stay together where nothing else asks for more: what the CPU's kernels read at once."""
MOST_RANKS = 64
"""Above this nobody is told of a valid size."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `ranks`."""

    rank: int = 0
    ranks: int = 1

    def config(self, model: ModelConfig) -> ModelConfig:
        """`model` with the heads that this rank has."""
        heads, kv_heads = self.heads(model), self.kv_heads(model)
        return replace(model, heads=len(heads), kv_heads=len(kv_heads))

    def heads(self, model: ModelConfig) -> range:
        return self.run(model.heads)

    def kv_heads(self, model: ModelConfig) -> range:
        """With fewer than ranks, several ranks have the same one."""
        if model.kv_heads >= self.ranks:
            return self.run(model.kv_heads)
        own = self.rank * model.kv_heads // self.ranks
        return range(own, own + 1)

    def run(self, size: int, piece: int = 1) -> range:
        """This rank's part of 0..size-1: whole pieces, as evenly as they go."""
        pieces = -(-size // piece)
        first, last = (each * pieces // self.ranks for each in (self.rank, self.rank + 1))
        return range(first * piece, min(last * piece, size))

    def runs(self, size: int, piece: int = 1) -> list[range]:
        """Every rank's."""
        return [Shard(rank, self.ranks).run(size, piece) for rank in range(self.ranks)]


def piece_of(width: int, ranks: int, block: int = 1) -> int:
    """How long the pieces of a width are: `block`, and `PIECE` where that leaves one for each rank."""
    piece = block if block > 1 else PIECE
    while piece > block and (width % piece or width // piece < ranks):
        piece //= 2
    return piece


def splits(heads: int, kv_heads: int, ranks: int) -> bool:
    """Query heads divide among the ranks, and KV heads divide or are copied evenly."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def check_split(model: ModelConfig, ranks: int) -> None:
    """Raises `ConfigError` that names the sizes which would do."""
    if splits(model.heads, model.kv_heads, ranks):
        return
    valid = [each for each in range(1, MOST_RANKS + 1) if splits(model.heads, model.kv_heads, each)]
    raise ConfigError(
        f"--tensor-parallel-size {ranks} does not divide {model.heads} query and {model.kv_heads} KV heads; valid are "
        f"{', '.join(map(str, valid))}"
    )
