"""Bytes of KV cache: per token, and per sequence of a given length.

Full attention keeps 2 x layers x kv_heads x head_dim values per token (a key and a value in every layer). A layer with a
sliding window keeps at most the window's tokens of a sequence. Latent attention keeps one latent vector and one rotary key
per layer, whatever the number of heads, on every rank. With more ranks than KV heads each rank holds one head: they are
copies of each other. docs/kv-memory.md has examples.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import BLOCK_SIZE
from ..parallel.shard import splits
from .shape import ModelShape

VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one device keeps."""

    layer_token_bytes: int
    """One token in one layer."""
    windows: tuple[int | None, ...]

    @property
    def token_bytes(self) -> int:
        """One token in all layers, while it lies in every window."""
        return self.layer_token_bytes * len(self.windows)

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * BLOCK_SIZE

    def sequence_bytes(self, tokens: int) -> int:
        """A sequence of `tokens`, in whole blocks. A window of W tokens can touch one block more than W fill."""
        total = 0
        for window in self.windows:
            blocks = -(-tokens // BLOCK_SIZE)
            if window is not None:
                blocks = min(blocks, -(-window // BLOCK_SIZE) + 1)
            total += blocks * BLOCK_SIZE * self.layer_token_bytes
        return total


def kv_shape(shape: ModelShape, dtype: str, ranks: int = 1) -> KVShape:
    """`dtype` is float32, float16, bfloat16 or fp8."""
    size = VALUE_BYTES[dtype]
    if shape.latent:
        return KVShape((shape.latent.kv_rank + shape.latent.rope_dim) * size, shape.windows)
    heads = -(-shape.kv_heads // ranks)
    return KVShape(2 * heads * shape.head_dim * size, shape.windows)


def valid_splits(shape: ModelShape, most: int = 16) -> list[int]:
    """Tensor-parallel sizes at which query heads divide, and KV heads divide or are copied evenly."""
    return [
        ranks
        for ranks in range(1, most + 1)
        if splits(shape.heads, shape.kv_heads if shape.latent is None else 1, ranks)
    ]
