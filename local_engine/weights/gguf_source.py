"""A GGUF file as a source of weights: llama.cpp's names back to Hugging Face's, and for Llama its q/k row order undone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.linear import VALUE_BYTES, StoredWeight, stored

from ..errors import ModelError
from ..models.config import read_gguf_config
from .embedding import Embedding, GGUFEmbedding
from .gguf import GGUFTensor, read_gguf

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    stem, _, suffix = name.rpartition(".")
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        return f"blk.{match[1]}.{_LAYER[match[2]]}.{suffix}"
    return f"{_TOP[stem]}.{suffix}"


def unpermuted_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Row order that turns llama.cpp's q/k matrices (pairs side by side) back into Hugging Face's (halves).

    convert_hf_to_gguf.py stores row (head, i, half) where Hugging Face has (head, half, i), i < head_dim / 2.
    """
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


class GGUFSource:
    def __init__(self, path: Path) -> None:
        self._file = read_gguf(path)
        self.config = read_gguf_config(path, self._file.metadata, self._file.tensors)
        kinds = Counter(tensor.kind for tensor in self._file.tensors.values() if len(tensor.shape) == 2)
        self.precision = " and ".join(kind for kind, _ in kinds.most_common())
        self.stores_bfloat16 = "BF16" in kinds
        self.stored_as: str | None = "gguf"

    def _tensor(self, name: str) -> GGUFTensor:
        tensor = self._file.tensors.get(gguf_name(name))
        if tensor is None:
            raise ModelError(
                f"{self._file.path} has no tensor {gguf_name(name)}: it is incomplete, or of another family"
            )
        return tensor

    def has(self, name: str) -> bool:
        return gguf_name(name) in self._file.tensors

    def matrix(self, name: str) -> StoredWeight:
        tensor = self._tensor(name)
        storage = tensor.kind.lower()
        if storage not in VALUE_BYTES:
            return self._ordered(name, stored(torch.from_numpy(tensor.dequantised())))
        rows, columns = tensor.shape
        weight = StoredWeight(
            storage, (rows, columns), tensor.data, lambda: torch.from_numpy(np.array(tensor.dequantised()))
        )
        return self._ordered(name, weight)

    def _ordered(self, name: str, weight: StoredWeight) -> StoredWeight:
        if self.config.architecture != "llama":
            return weight
        if ".self_attn.q_proj." in name:
            return weight.rows(unpermuted_rows(self.config.heads, self.config.head_dim))
        if ".self_attn.k_proj." in name:
            return weight.rows(unpermuted_rows(self.config.kv_heads, self.config.head_dim))
        return weight

    def vector(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self._tensor(name).dequantised()))

    def embedding(self, name: str) -> Embedding:
        return GGUFEmbedding(self._tensor(name))

    def rotary_factors(self) -> torch.Tensor | None:
        factors = self._file.tensors.get("rope_freqs.weight")
        return None if factors is None else torch.from_numpy(np.array(factors.dequantised()))
