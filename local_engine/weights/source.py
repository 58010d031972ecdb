"""Where a model's tensors come from, under the names that Hugging Face's models give them, whatever the file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from kernels.quantised_weight import Weight

from ..models.config import ModelConfig
from .embedding import Embedding


class WeightSource(Protocol):
    """Thread-safe: a model asks for its tensors from several threads."""

    config: ModelConfig
    precision: str
    """The stored types, for the start-up line."""
    stores_bfloat16: bool
    """Some matrix is stored in bfloat16."""
    stored_as: str | None
    """Under the name that --quantization has for it: what a quantiser or `gguf` made of the weights; None: plain."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""

    def matrix(self, name: str) -> Weight:
        """A linear layer's weight at its own bits. Raises `ModelError` when it is missing or of the wrong shape."""

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight or a bias, float32."""

    def embedding(self, name: str) -> Embedding:
        """The token embedding, for looking rows up."""

    def rotary_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies, where the file brings its own (GGUF's Llama 3.1)."""


def open_weights(path: Path) -> WeightSource:
    """The weights in a folder or .gguf file. Raises `ModelError`."""
    if path.is_dir():
        from .safetensors import SafetensorsSource

        return SafetensorsSource(path)
    from .gguf_source import GGUFSource

    return GGUFSource(path)
