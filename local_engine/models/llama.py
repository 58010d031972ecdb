"""The Llama family: Llama 2 and 3.x, SmolLM2, Mistral (within its window).

Pre-norm blocks of grouped-query attention with rotary positions and a SwiGLU feed-forward. Sources: arXiv:2302.13971,
arXiv:2307.09288, arXiv:2407.21783.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from kernels.batch import StepLayout
from kernels.operations import Matrix, Operations
from kernels.rotary import rotary_frequencies, rotary_tables

from ..errors import ModelError
from ..kv_cache import KVCache
from ..weights.source import WeightSource


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: torch.Tensor
    qkv: Matrix
    o: Matrix
    mlp_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix


class Llama:
    """Weights, and the calls of one forward pass over buffers allocated once."""

    def __init__(
        self,
        source: WeightSource,
        operations: Operations,
        *,
        max_context: int,
        device: torch.device,
        threads: int,
        progress: Callable[[str], None],
    ) -> None:
        self.config = config = source.config
        self._operations = operations
        self._embedding = source.embedding("model.embed_tokens.weight")
        self._device = device
        with ThreadPoolExecutor(threads) as pool:
            head_name = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
            head = pool.submit(lambda: operations.pack([source.matrix(f"{head_name}.weight")]))
            pending = [pool.submit(_load_layer, source, operations, number) for number in range(config.layers)]
            self.layers: list[Layer] = []
            for number, future in enumerate(pending, 1):
                self.layers.append(future.result())
                if number * 4 % config.layers < 4:  # about every quarter, and the last
                    progress(f"loading weights: layer {number} of {config.layers}")
            self.head = head.result()
        self.norm = operations.vector(source.vector("model.norm.weight"))
        self._tables = _rotary(source, max_context, device)
        buffer = operations.buffer
        self.hidden, self._normed = buffer(config.hidden_size), buffer(config.hidden_size)
        self._qkv = buffer((config.heads + 2 * config.kv_heads) * config.head_dim)
        self._attended = buffer(config.heads * config.head_dim)
        self._gate_up, self._gated = buffer(2 * config.intermediate_size), buffer(config.intermediate_size)
        self._cache: KVCache | None = None

    def attach(self, cache: KVCache) -> None:
        """The pool that every later step reads and writes."""
        self._cache = cache

    def step(self, ids: torch.Tensor, layout: StepLayout, sampling_rows: torch.Tensor) -> torch.Tensor:
        """Computes `ids` [T] (host) at `layout`; float32 logits [len(sampling_rows), vocab] of those rows."""
        rows = self._embedding.rows(ids)
        self.hidden[: len(ids)] = rows.to(self._device, self.hidden.dtype)
        self._operations.run(self._forward, layout)
        if not len(sampling_rows):
            return torch.empty(0, self.config.vocab_size)
        chosen = self.hidden[sampling_rows.to(self._device)]
        return self._operations.logits(chosen, self.norm, self.config.rms_norm_eps, self.head)

    def _forward(self) -> None:
        assert self._cache is not None, "attach() comes first"
        ops, config = self._operations, self.config
        hidden, normed, eps = self.hidden, self._normed, config.rms_norm_eps
        for layer, caches in zip(self.layers, self._cache.layers, strict=True):
            ops.rms_norm(hidden, layer.attention_norm, eps, normed)
            ops.linear(normed, layer.qkv, self._qkv)
            ops.rotary_write(self._qkv, self._tables, caches, config.heads)
            ops.attention(self._qkv, caches, config.heads, self._attended)
            ops.linear(self._attended, layer.o, hidden, add=True)
            ops.rms_norm(hidden, layer.mlp_norm, eps, normed)
            ops.linear(normed, layer.gate_up, self._gate_up)
            ops.silu_mul(self._gate_up, self._gated)
            ops.linear(self._gated, layer.down, hidden, add=True)


def _load_layer(source: WeightSource, operations: Operations, number: int) -> Layer:
    prefix = f"model.layers.{number}."

    def matrix(*names: str) -> Matrix:
        return operations.pack([source.matrix(f"{prefix}{name}.weight") for name in names])

    return Layer(
        attention_norm=operations.vector(source.vector(f"{prefix}input_layernorm.weight")),
        qkv=matrix("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        o=matrix("self_attn.o_proj"),
        mlp_norm=operations.vector(source.vector(f"{prefix}post_attention_layernorm.weight")),
        gate_up=matrix("mlp.gate_proj", "mlp.up_proj"),
        down=matrix("mlp.down_proj"),
    )


def _rotary(source: WeightSource, max_context: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    config = source.config
    try:
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    except ValueError as error:
        raise ModelError(f"{error} is not supported (there are: default, linear, llama3)") from error
    factors = source.rotary_factors()
    if factors is not None:
        frequencies = frequencies / factors
    cos, sin = rotary_tables(frequencies, max_context)
    return cos.to(device), sin.to(device)
