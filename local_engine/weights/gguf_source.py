"""A GGUF file as a source of weights: llama.cpp's names back to Hugging Face's. What its converter changes is undone: the order
of Llama's q/k rows (and biases), and the 1 added to Gemma's norms.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.linear import VALUE_BYTES, StoredWeight, stored

from ..errors import ModelError
from ..models.gguf_config import read_gguf_config
from .embedding import Embedding, GGUFEmbedding
from .gguf import GGUFTensor, read_gguf

GEMMA = ("gemma2", "gemma3")
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor's name in the file, and which of the experts that are stacked in it is meant."""

    name: str
    expert: int | None = None


def gguf_place(name: str, architecture: str = "llama") -> Place | None:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`; None for what GGUF has no name for."""
    stem, _, suffix = name.rpartition(".")
    if not (layer := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)):
        return Place(f"{_TOP[stem]}.{suffix}") if stem in _TOP else None
    prefix, own = f"blk.{layer[1]}", layer[2]
    if expert := re.fullmatch(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)", own):
        return Place(f"{prefix}.{_EXPERTS[expert[2]]}.{suffix}", int(expert[1]))
    names = {**_LAYER, **_GEMMA} if architecture in GEMMA else _LAYER
    return Place(f"{prefix}.{names[own]}.{suffix}") if own in names else None


def unpermuted_rows(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Row order that turns llama.cpp's q/k matrices (pairs side by side) back into Hugging Face's (halves).

    convert_hf_to_gguf.py stores row (head, i, half) where Hugging Face has (head, half, i), i < head_dim / 2.
    """
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


class GGUFSource:
    def __init__(self, path: Path) -> None:
        self._file = read_gguf(path)
        self.config = read_gguf_config(path, self._file.metadata, self._file.tensors)
        kinds = Counter(tensor.kind for tensor in self._file.tensors.values() if len(tensor.shape) > 1)
        self.precision = " and ".join(kind for kind, _ in kinds.most_common())
        self.stores_bfloat16 = "BF16" in kinds
        self.stored_as: str | None = "gguf"

    def _tensor(self, name: str) -> GGUFTensor:
        place = gguf_place(name, self.config.architecture)
        tensor = self._file.tensors.get(place.name) if place is not None else None
        if place is None or tensor is None:
            raise ModelError(
                f"{self._file.path} has no tensor {name if place is None else place.name}: it is incomplete, or of another family"
            )
        return tensor if place.expert is None else tensor.part(place.expert)

    def has(self, name: str) -> bool:
        place = gguf_place(name, self.config.architecture)
        return place is not None and place.name in self._file.tensors

    def matrix(self, name: str) -> StoredWeight:
        tensor = self._tensor(name)
        storage, order = tensor.kind.lower(), self._row_order(name)
        if storage not in VALUE_BYTES:
            weight = stored(torch.from_numpy(tensor.dequantised()))
        else:
            rows, columns = tensor.shape
            weight = StoredWeight(
                storage, (rows, columns), tensor.data, lambda: torch.from_numpy(np.array(tensor.dequantised()))
            )
        return weight if order is None else weight.rows(order)

    def _row_order(self, name: str) -> NDArray[np.int64] | None:
        if self.config.architecture != "llama":
            return None
        if ".self_attn.q_proj." in name:
            return unpermuted_rows(self.config.heads, self.config.head_dim)
        if ".self_attn.k_proj." in name:
            return unpermuted_rows(self.config.kv_heads, self.config.head_dim)
        return None

    def vector(self, name: str) -> torch.Tensor:
        values, order = torch.from_numpy(np.array(self._tensor(name).dequantised())), self._row_order(name)
        if self.config.architecture in GEMMA and name.endswith("norm.weight"):
            return values - 1.0
        return values if order is None else values[torch.from_numpy(order)]

    def embedding(self, name: str) -> Embedding:
        return GGUFEmbedding(self._tensor(name))

    def rotary_factors(self) -> torch.Tensor | None:
        factors = self._file.tensors.get("rope_freqs.weight")
        return None if factors is None else torch.from_numpy(np.array(factors.dequantised()))
