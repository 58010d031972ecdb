"""The operations a model is written in, and their plain torch form.

A model allocates its activation buffers and packs its weights through an `Operations`, then describes one forward pass as
calls that write into those buffers. Plain torch executes the calls as they come, on the first `tokens` rows; the CPU kernels
record them once and replay the recording (cpu/operations.py). The model's code is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .batch import StepLayout
from .fp8 import CacheScales
from .low_rank import AdapterPairs, adapt_rows
from .paged_attention import paged_attention_reference
from .quantised_weight import Weight
from .rms_norm import rms_norm_reference
from .rotary import rotary_reference, write_cache_reference
from .sampling import DrawSettings, draw_reference
from .silu_mul import gelu_mul_reference, silu_mul_reference


class Matrix(Protocol):
    """A packed weight matrix; opaque to the model."""

    @property
    def outputs(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Attention:
    """What a layer's attention is beside its caches: scores are cap(q · k * scale), cap(s) = c tanh(s / c).

    `window`: keys that a token sees, itself included; None: all. `softcap`: c; None: no cap. `scales`: of caches in fp8.
    """

    heads: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    scales: CacheScales | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture's weights. An expert is (gate and up, down); a token takes the `top_k` with the highest softmax(x routerᵀ),
    weighted by it, and with `normalise` divided by the sum of those taken.
    """

    router: Matrix
    experts: Sequence[tuple[Matrix, Matrix]]
    top_k: int
    normalise: bool


class Operations(Protocol):
    """All tensors are row-major; `rows` below is the number of tokens of the step (or of the tensor, outside `run`)."""

    name: str
    """Which path runs, for the start-up line."""
    dtype: torch.dtype
    """Type of the activations."""
    held: set[str]
    """How the matrices packed so far are held, for the start-up line."""
    cache_types: Sequence[torch.dtype]
    """In which the caches of keys and values may be."""

    def buffer(self, width: int) -> torch.Tensor:
        """Activations [capacity, width]; a step uses its first rows."""

    def pack(self, parts: Sequence[Weight]) -> Matrix:
        """One matrix with the parts' outputs one after the other."""

    def vector(self, values: torch.Tensor, exact: bool = False) -> torch.Tensor:
        """A norm's weight or a bias, in the type and place the path wants; `exact`: in float32 whatever the path (Gemma's 1 + w
        would lose w's last bits in 16)."""

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        """Executes `forward`'s calls for this step."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool = False) -> None:
        """out = norm(x), or out += norm(x)."""

    def head_norm(self, qkv: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """RMS norm of each of the first heads of `qkv`, in place: `weight` [heads, d] has a row for each of them."""

    def add_bias(self, x: torch.Tensor, bias: torch.Tensor) -> None:
        """x [rows, width] += bias [width]."""

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        """out = x Wᵀ, or out += x Wᵀ."""

    def adapt(self, x: torch.Tensor, adapters: AdapterPairs, out: torch.Tensor) -> None:
        """out += what each row's own adapter makes of x, where it has one for this matrix."""

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        how: Attention,
    ) -> None:
        """Rotates the queries in `qkv` [rows, (heads + 2 kv_heads) d] in place; stores rotated keys, and values."""

    def attention(
        self, qkv: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], how: Attention, out: torch.Tensor
    ) -> None:
        """out [rows, heads d] = attention of the queries in `qkv` over the caches."""

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None: ...

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None: ...

    def mixture(self, x: torch.Tensor, experts: Experts, out: torch.Tensor) -> None:
        """out += for each row the weighted sum of its experts' down(silu(gate x) * up x)."""

    def call(self, function: Callable[[int], None]) -> None:
        """`function(rows)` at this point of the pass: for what is no operation on a device, such as a sum over processes."""

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        """float32 [rows of x, outputs]: final norm and head, for the rows that sample. The next call may overwrite them."""

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        """One token per row of what `logits` gave (sampling.py); None where it holds NaN or only -inf."""

    @property
    def draws_on_device(self) -> Callable[[torch.Tensor, DrawSettings], torch.Tensor] | None:
        """The same as int32 [rows] that is not waited for, -1 for None; None where a path has no such thing. A path that has it
        also computes a pass without waiting, for a layout with `decoding`."""


class TorchMatrix:
    """A dequantised matrix in the activations' type."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    @property
    def outputs(self) -> int:
        return self.values.shape[0]


class TorchOperations:
    """Plain torch, eager, on any device: the reference path."""

    cache_types: Sequence[torch.dtype] = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)

    def __init__(self, device: torch.device, dtype: torch.dtype, capacity: int) -> None:
        self.name = f"torch on {device}, {str(dtype).removeprefix('torch.')}"
        self.device, self.dtype, self.capacity = device, dtype, capacity
        self.held: set[str] = set()
        self._layout: StepLayout | None = None
        self._adapted: dict[int, torch.Tensor] = {}

    @property
    def layout(self) -> StepLayout:
        assert self._layout is not None, "outside run()"
        return self._layout

    def buffer(self, width: int) -> torch.Tensor:
        return torch.empty(self.capacity, width, dtype=self.dtype, device=self.device)

    def pack(self, parts: Sequence[Weight]) -> Matrix:
        self.held.add(str(self.dtype).removeprefix("torch."))
        whole = torch.cat([part.dequantise().to(self.dtype) for part in parts])
        return TorchMatrix(whole.to(self.device))

    def vector(self, values: torch.Tensor, exact: bool = False) -> torch.Tensor:
        return values.to(self.device, torch.float32 if exact else self.dtype)

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        self._layout = layout
        self._adapted = layout.rows_by_adapter()
        forward()
        self._layout = None

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool = False) -> None:
        rows = self.layout.tokens
        result = rms_norm_reference(x[:rows], weight, eps)
        out[:rows] = result + out[:rows] if add else result

    def head_norm(self, qkv: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        heads = qkv[: self.layout.tokens, : weight.numel()].view(-1, *weight.shape)
        heads.copy_(rms_norm_reference(heads, weight, eps))

    def add_bias(self, x: torch.Tensor, bias: torch.Tensor) -> None:
        x[: self.layout.tokens] += bias

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        assert isinstance(weight, TorchMatrix)
        rows = self.layout.tokens
        result = torch.nn.functional.linear(x[:rows], weight.values)
        out[:rows] = result + out[:rows] if add else result

    def adapt(self, x: torch.Tensor, adapters: AdapterPairs, out: torch.Tensor) -> None:
        adapt_rows(x, adapters, self._adapted, out)

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        how: Attention,
    ) -> None:
        layout, scales, heads = self.layout, how.scales, how.heads
        kv_heads, size = caches[0].shape[1], caches[0].shape[3]
        cos, sin = (table[layout.positions] for table in tables)
        parts = qkv[: layout.tokens].view(layout.tokens, heads + 2 * kv_heads, size)
        parts[:, : heads + kv_heads] = rotary_reference(parts[:, : heads + kv_heads], cos, sin)
        keys, values = parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :]
        write_cache_reference(keys, caches[0], layout.slots, scales.keys if scales else None)
        write_cache_reference(values, caches[1], layout.slots, scales.values if scales else None)

    def attention(
        self, qkv: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], how: Attention, out: torch.Tensor
    ) -> None:
        rows, size = self.layout.tokens, caches[0].shape[3]
        queries = qkv[:rows].view(rows, -1, size)[:, : how.heads]
        result = paged_attention_reference(
            queries, *caches, self.layout, how.scale, window=how.window, softcap=how.softcap, scales=how.scales
        )
        out[:rows] = result.reshape(rows, how.heads * size)

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        out[:rows] = silu_mul_reference(gate_up[:rows])

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        out[:rows] = gelu_mul_reference(gate_up[:rows])

    def mixture(self, x: torch.Tensor, experts: Experts, out: torch.Tensor) -> None:
        assert isinstance(experts.router, TorchMatrix)
        rows = self.layout.tokens
        scores = torch.nn.functional.linear(x[:rows], experts.router.values)
        for expert, tokens, weights in choose_experts(scores, experts):
            gate_up, down = expert
            assert isinstance(gate_up, TorchMatrix) and isinstance(down, TorchMatrix)
            gated = silu_mul_reference(torch.nn.functional.linear(x[tokens], gate_up.values))
            result = torch.nn.functional.linear(gated, down.values) * weights[:, None].to(x.dtype)
            out.index_add_(0, tokens, result)

    def call(self, function: Callable[[int], None]) -> None:
        function(self.layout.tokens)

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        assert isinstance(head, TorchMatrix)
        return torch.nn.functional.linear(rms_norm_reference(x, norm, eps), head.values).float()

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        return draw_reference(logits, settings)

    @property
    def draws_on_device(self) -> Callable[[torch.Tensor, DrawSettings], torch.Tensor] | None:
        return None


def choose_experts(
    scores: torch.Tensor, experts: Experts
) -> Iterator[tuple[tuple[Matrix, Matrix], torch.Tensor, torch.Tensor]]:
    """From the router's scores [rows, experts]: each expert that somebody takes, the rows that take it (int64 [n]) and their
    weights (float32 [n])."""
    weights, chosen = scores.float().softmax(-1).topk(experts.top_k, dim=-1)
    if experts.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    for number in sorted(set(chosen.flatten().tolist())):
        rows, place = (chosen == number).nonzero(as_tuple=True)
        yield experts.experts[number], rows, weights[rows, place]
