"""The operations a model is written in, and their plain torch form.

A model allocates its activation buffers and packs its weights through an `Operations`, then describes one forward pass as
calls that write into those buffers. Plain torch executes the calls as they come, on the first `tokens` rows; the CPU kernels
record them once and replay the recording (cpu/operations.py). The model's code is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from .batch import StepLayout
from .linear import StoredWeight
from .paged_attention import paged_attention_reference
from .rms_norm import rms_norm_reference
from .rotary import rotary_reference, write_cache_reference
from .sampling import DrawSettings, draw_reference
from .silu_mul import silu_mul_reference


class Matrix(Protocol):
    """A packed weight matrix; opaque to the model."""

    @property
    def outputs(self) -> int: ...


class Operations(Protocol):
    """All tensors are row-major; `rows` below is the number of tokens of the step (or of the tensor, outside `run`)."""

    name: str
    """Which path runs, for the start-up line."""
    dtype: torch.dtype
    """Type of the activations."""

    def buffer(self, width: int) -> torch.Tensor:
        """Activations [capacity, width]; a step uses its first rows."""

    def pack(self, parts: Sequence[StoredWeight]) -> Matrix:
        """One matrix with the parts' outputs one after the other."""

    def vector(self, values: torch.Tensor) -> torch.Tensor:
        """A norm's weight, in the type and place the path wants."""

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        """Executes `forward`'s calls for this step."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None: ...

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        """out = x Wᵀ, or out += x Wᵀ."""

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        heads: int,
    ) -> None:
        """Rotates the queries in `qkv` [rows, (heads + 2 kv_heads) d] in place; stores rotated keys, and values."""

    def attention(
        self, qkv: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], heads: int, out: torch.Tensor
    ) -> None:
        """out [rows, heads d] = attention of the queries in `qkv` over the caches."""

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None: ...

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        """float32 [rows of x, outputs]: final norm and head, at once, for the rows that sample."""

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        """One token per row of what `logits` gave (sampling.py); None where it holds NaN or only -inf."""


class TorchMatrix:
    """A dequantised matrix in the activations' type."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    @property
    def outputs(self) -> int:
        return self.values.shape[0]


class TorchOperations:
    """Plain torch, eager, on any device: the reference path."""

    def __init__(self, device: torch.device, dtype: torch.dtype, capacity: int) -> None:
        self.name = f"torch on {device}, {str(dtype).removeprefix('torch.')}"
        self.device, self.dtype, self.capacity = device, dtype, capacity
        self._layout: StepLayout | None = None

    @property
    def layout(self) -> StepLayout:
        assert self._layout is not None, "outside run()"
        return self._layout

    def buffer(self, width: int) -> torch.Tensor:
        return torch.empty(self.capacity, width, dtype=self.dtype, device=self.device)

    def pack(self, parts: Sequence[StoredWeight]) -> Matrix:
        whole = torch.cat([part.dequantise().to(self.dtype) for part in parts])
        return TorchMatrix(whole.to(self.device))

    def vector(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.device, self.dtype)

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        self._layout = layout
        forward()
        self._layout = None

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        out[:rows] = rms_norm_reference(x[:rows], weight, eps)

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        assert isinstance(weight, TorchMatrix)
        rows = self.layout.tokens
        result = torch.nn.functional.linear(x[:rows], weight.values)
        out[:rows] = result + out[:rows] if add else result

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        heads: int,
    ) -> None:
        layout = self.layout
        kv_heads, size = caches[0].shape[1], caches[0].shape[3]
        cos, sin = (table[layout.positions] for table in tables)
        parts = qkv[: layout.tokens].view(layout.tokens, heads + 2 * kv_heads, size)
        parts[:, : heads + kv_heads] = rotary_reference(parts[:, : heads + kv_heads], cos, sin)
        write_cache_reference(parts[:, heads : heads + kv_heads], caches[0], layout.slots)
        write_cache_reference(parts[:, heads + kv_heads :], caches[1], layout.slots)

    def attention(
        self, qkv: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], heads: int, out: torch.Tensor
    ) -> None:
        rows, size = self.layout.tokens, caches[0].shape[3]
        queries = qkv[:rows].view(rows, -1, size)[:, :heads]
        result = paged_attention_reference(queries, *caches, self.layout, size**-0.5)
        out[:rows] = result.reshape(rows, heads * size)

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        out[:rows] = silu_mul_reference(gate_up[:rows])

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        assert isinstance(head, TorchMatrix)
        return torch.nn.functional.linear(rms_norm_reference(x, norm, eps), head.values).float()

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        return draw_reference(logits, settings)
