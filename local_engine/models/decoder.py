"""A decoder-only transformer of any family: its weights, and the calls of one forward pass over buffers allocated once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat

import torch

from kernels.batch import StepLayout
from kernels.operations import Attention, Experts, Operations, TorchMatrix
from kernels.rms_norm import rms_norm_reference
from kernels.rope_scaling import KINDS, partial_order, rotation
from kernels.rotary import rotary_tables

from ..errors import ModelError
from ..kv_cache import KVCache
from ..parallel.cut import cut_model
from ..parallel.group import Group
from ..weights.embedding import Embedding, EmbeddingPart, TorchEmbedding
from ..weights.source import WeightSource
from .family import Family
from .layer import Layer, LayerLoader, Linear

Tables = tuple[torch.Tensor, torch.Tensor]


class Decoder:
    """Loads the weights at construction. `compute` and `logits` are the whole of it afterwards."""

    def __init__(
        self,
        source: WeightSource,
        family: Family,
        operations: Operations,
        *,
        max_context: int,
        device: torch.device,
        threads: int,
        progress: Callable[[str], None],
        group: Group | None = None,
    ) -> None:
        """`group`: the ranks that share the model with this one, of which every one makes the same calls; None: it is whole."""
        self._cut = cut_model(group.shard, source, family) if group is not None else None
        self.config = config = source.config if group is None else group.shard.config(source.config)
        """Of what is here: a rank has some of the heads."""
        self._family, self._operations, self._device, self._group = family, operations, device, group
        self._embedding = source.embedding("model.embed_tokens.weight")
        if self._cut is not None:
            self._embedding = EmbeddingPart(self._embedding, self._cut.vocabulary)
        loader = LayerLoader(source, family, operations, partial_order(config.head_dim, config.rope), self._cut)
        with ThreadPoolExecutor(threads) as pool:
            head = pool.submit(loader.head)
            pending = [pool.submit(loader.layer, number) for number in range(config.layers)]
            self.layers: list[Layer] = []
            for number, future in enumerate(pending, 1):
                self.layers.append(future.result())
                if number * 4 % config.layers < 4:  # about every quarter, and the last
                    progress(f"loading weights: layer {number} of {config.layers}")
            self.head = head.result()
        if device.type == "cuda":
            self._embedding = self._embedding_on(device, operations.dtype)
        self.norm = loader.norm("model.norm")
        scale = family.attention_scale or config.head_dim**-0.5
        windows = family.windows or (None,) * config.layers
        self._attention = [Attention(config.heads, scale, window, family.attention_softcap) for window in windows]
        self._tables = _tables(source, family, max_context, device)
        buffer = operations.buffer
        self.hidden, self._normed = buffer(config.hidden_size), buffer(config.hidden_size)
        self._qkv = buffer((config.heads + 2 * config.kv_heads) * config.head_dim)
        self._attended = buffer(config.heads * config.head_dim)
        inner = config.intermediate_size if self._cut is None else len(self._cut.inner)
        self._gate_up, self._gated = buffer(2 * inner), buffer(inner)
        self._mixed = buffer(config.hidden_size) if group is not None and family.mixture is not None else None
        self._cache: KVCache | None = None
        self._adapting = False

    @property
    def linears(self) -> list[Linear]:
        """Every matrix that an adapter may change."""
        parts = [(layer.qkv, layer.o, *(layer.mlp if isinstance(layer.mlp, tuple) else ())) for layer in self.layers]
        return [linear for layer in parts for linear in layer]

    @property
    def never_waits(self) -> bool:
        """A pass needs nothing of the host while it runs: no expert's rows are counted, no rank is waited for."""
        return self._group is None and not any(isinstance(layer.mlp, Experts) for layer in self.layers)

    @property
    def window(self) -> int | None:
        """Tokens that any layer looks back on, the current one included; None where some layer sees everything."""
        windows = [how.window for how in self._attention]
        known = [window for window in windows if window is not None]
        return max(known) if len(known) == len(windows) else None

    def attach(self, cache: KVCache) -> None:
        """The pool that every later step reads and writes."""
        self._cache = cache
        scales = repeat(None, len(self._attention)) if cache.scales is None else cache.scales
        self._attention = [replace(how, scales=own) for how, own in zip(self._attention, scales, strict=True)]

    def _embedding_on(self, device: torch.device, dtype: torch.dtype) -> Embedding:
        """Where tokens are drawn. A head that is the embedding lies there already."""
        if self.config.tie_word_embeddings and isinstance(self.head, TorchMatrix):
            own = TorchEmbedding(self.head.values)
            return own if self._cut is None else EmbeddingPart(own, self._cut.vocabulary, self._cut.vocabulary.start)
        return self._embedding.on(device, dtype)

    def compute(self, ids: torch.Tensor, layout: StepLayout) -> None:
        """Runs `ids` [T] (on any device) at `layout` through all layers; `logits` then tells any of its rows."""
        rows = self._embedding.rows(ids)
        if self._family.embedding_scale is not None:
            rows = rows * torch.tensor(self._family.embedding_scale, dtype=rows.dtype)
        self.hidden[: len(ids)] = rows.to(self._device, self.hidden.dtype)
        if self._group is not None:
            self._group.sum(self.hidden[: len(ids)])
        self._operations.run(self._forward_adapted if layout.adapters else self._forward, layout)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [len(rows), vocab] for rows of the step that `compute` ran last. Of ranks, the first one gets it."""
        return self._logits(self.hidden[rows.to(self._device)])

    def first_logits(self, count: int) -> torch.Tensor:
        """The same for the first `count` rows, with no word from the host."""
        return self._logits(self.hidden[:count])

    def _logits(self, chosen: torch.Tensor) -> torch.Tensor:
        logits = self._operations.logits(chosen, self.norm, self.config.rms_norm_eps, self.head)
        if self._group is not None and self._cut is not None:
            logits = self._group.gather(logits, [len(run) for run in self._cut.vocabulary_runs])
        if (cap := self._family.logit_softcap) is not None:
            return cap * torch.tanh(logits / cap)
        return logits

    def normed(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [len(rows), hidden]: what the head would be given for these rows of the step that `compute` ran last."""
        chosen = self.hidden[rows.to(self._device)]
        return rms_norm_reference(chosen, self.norm, self.config.rms_norm_eps).float()

    def _forward(self) -> None:
        assert self._cache is not None, "attach() comes first"
        for layer, caches in zip(self.layers, self._cache.layers, strict=True):
            self._attend(layer, caches)
            self._feed_forward(layer)

    def _forward_adapted(self) -> None:
        """The same with every row's own adapter."""
        self._adapting = True
        self._forward()
        self._adapting = False

    def _attend(self, layer: Layer, caches: tuple[torch.Tensor, torch.Tensor]) -> None:
        ops, eps = self._operations, self.config.rms_norm_eps
        how = self._attention[layer.number]
        ops.rms_norm(self.hidden, layer.attention_norm, eps, self._normed)
        self._linear(self._normed, layer.qkv, self._qkv)
        if layer.head_norms is not None:
            ops.head_norm(self._qkv, layer.head_norms, eps)
        ops.rotary_write(self._qkv, self._tables[how.window is not None], caches, how)
        ops.attention(self._qkv, caches, how, self._attended)
        self._add_to_residual(self._attended, layer.o, layer.attention_out_norm)

    def _feed_forward(self, layer: Layer) -> None:
        ops = self._operations
        ops.rms_norm(self.hidden, layer.mlp_norm, self.config.rms_norm_eps, self._normed)
        if isinstance(layer.mlp, Experts):
            self._mix(layer.mlp)
            return
        gate_up, down = layer.mlp
        self._linear(self._normed, gate_up, self._gate_up)
        activate = ops.gelu_mul if self._family.gelu else ops.silu_mul
        activate(self._gate_up, self._gated)
        self._add_to_residual(self._gated, down, layer.mlp_out_norm)

    def _mix(self, experts: Experts) -> None:
        part = self._mixed
        if part is None:
            self._operations.mixture(self._normed, experts, self.hidden)
            return
        self._operations.call(lambda rows: _clear(part[:rows]))
        self._operations.mixture(self._normed, experts, part)
        self._operations.call(lambda rows: self._add_sum(part, rows))

    def _add_to_residual(self, x: torch.Tensor, linear: Linear, norm: torch.Tensor | None) -> None:
        """Of ranks, each has a part of the sum that x Wᵀ is."""
        if self._group is None and norm is None:
            self._linear(x, linear, self.hidden, add=True)
            return
        self._linear(x, linear, self._normed)
        if norm is None:
            self._operations.call(lambda rows: self._add_sum(self._normed, rows))
            return
        if self._group is not None:
            self._operations.call(lambda rows: self._sum(self._normed, rows))
        self._operations.rms_norm(self._normed, norm, self.config.rms_norm_eps, self.hidden, add=True)

    def _sum(self, part: torch.Tensor, rows: int) -> None:
        assert self._group is not None
        self._group.sum(part[:rows])

    def _add_sum(self, part: torch.Tensor, rows: int) -> None:
        self._sum(part, rows)
        self.hidden[:rows] += part[:rows]

    def _linear(self, x: torch.Tensor, linear: Linear, out: torch.Tensor, add: bool = False) -> None:
        self._operations.linear(x, linear.weight, out, add)
        if self._adapting:
            self._operations.adapt(x, linear.adapters, out)
        if linear.bias is not None:
            self._operations.add_bias(out, linear.bias)


def _clear(rows: torch.Tensor) -> None:
    rows.zero_()


def _tables(source: WeightSource, family: Family, max_context: int, device: torch.device) -> tuple[Tables, Tables]:
    """cos and sin of layers that see everything, and of layers with a window."""
    config, factors = source.config, source.rotary_factors()

    def of(scaling: dict[str, object]) -> Tables:
        try:
            turn = rotation(config.head_dim, scaling, trained=config.max_position_embeddings, positions=max_context)
        except ValueError as error:
            raise ModelError(f"{error} is not supported (there are: {', '.join(KINDS)})") from error
        except KeyError as error:
            raise ModelError(f"rope_scaling lacks {error}: download config.json again") from error
        if factors is not None:
            turn = type(turn)(turn.frequencies / factors, turn.magnitude)
        cos, sin = rotary_tables(turn, max_context)
        return cos.to(device), sin.to(device)

    everywhere = of(dict(config.rope))
    return everywhere, everywhere if family.local_rope is None else of(family.local_rope)
