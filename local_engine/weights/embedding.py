"""Looking token embeddings up: rows stay as the file has them and are widened as they are read."""

from __future__ import annotations

from typing import Protocol

import torch

from .gguf import GGUFTensor


class Embedding(Protocol):
    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """float [len(ids), hidden] for int64 `ids`, in the stored type or float32."""

    def on(self, device: torch.device, dtype: torch.dtype) -> Embedding:
        """All rows in `dtype` on a device, for ids that are there."""


class TorchEmbedding:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight[ids.to(self._weight.device, non_blocking=True)]

    def on(self, device: torch.device, dtype: torch.dtype) -> TorchEmbedding:
        return TorchEmbedding(self._weight.to(device, dtype))


class EmbeddingPart:
    """Of a run of the vocabulary; the rows of other tokens are zeros, so that the ranks' parts add up. `kept` has the rows from
    token `first` on."""

    def __init__(self, kept: Embedding, tokens: range, first: int = 0) -> None:
        self._kept, self._tokens, self._first = kept, tokens, first

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        least, most = self._tokens.start, self._tokens.stop - 1
        rows = self._kept.rows(ids.clamp(least, most) - self._first)
        return rows * ((ids >= least) & (ids <= most)).to(rows.device)[:, None]

    def on(self, device: torch.device, dtype: torch.dtype) -> EmbeddingPart:
        least, end = self._tokens.start, self._tokens.stop
        own = self._kept.rows(torch.arange(least, end) - self._first).to(device, dtype)
        return EmbeddingPart(TorchEmbedding(own), self._tokens, least)


class GGUFEmbedding:
    """Rows of a quantised matrix, dequantised by the gguf package as they are asked for."""

    def __init__(self, tensor: GGUFTensor) -> None:
        self._tensor = tensor

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        chosen = self._tensor.data[ids.numpy()]
        shape = (len(ids), self._tensor.shape[1])
        return torch.from_numpy(GGUFTensor(self._tensor.name, self._tensor.kind, shape, chosen).dequantised())

    def on(self, device: torch.device, dtype: torch.dtype) -> TorchEmbedding:
        return TorchEmbedding(self.rows(torch.arange(self._tensor.shape[0])).to(device, dtype))
