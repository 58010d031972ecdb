"""Looking token embeddings up: rows stay as the file has them and are widened as they are read."""

from __future__ import annotations

from typing import Protocol

import torch

from .gguf import GGUFTensor


class Embedding(Protocol):
    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """float [len(ids), hidden] for int64 `ids`, in the stored type or float32."""


class TorchEmbedding:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight[ids]


class GGUFEmbedding:
    """Rows of a quantised matrix, dequantised by the gguf package as they are asked for."""

    def __init__(self, tensor: GGUFTensor) -> None:
        self._tensor = tensor

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        chosen = self._tensor.data[ids.numpy()]
        shape = (len(ids), self._tensor.shape[1])
        return torch.from_numpy(GGUFTensor(self._tensor.name, self._tensor.kind, shape, chosen).dequantised())
