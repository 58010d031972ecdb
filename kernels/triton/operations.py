"""The operations of a model by Triton kernels, with torch's own matrix products between them.

The products are cuBLAS's: at 16 bits nothing written here would beat them. A residual is added in the product's epilogue
(`addmm_`). A step plans its attention once and shares the plan among all layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..batch import StepLayout
from ..operations import Attention, Matrix, TorchMatrix, TorchOperations
from ..sampling import DrawSettings
from .add_rms_norm import add_rms_norm
from .attention import AttentionPlan, paged_attention, plan_attention
from .configs import BF16_DOT, interpreted
from .gated_mul import gated_mul
from .rotary import rotary
from .sampling import draw
from .write_cache import write_cache


class TritonOperations(TorchOperations):
    """On a CUDA device, or on the CPU in Triton's interpreter (which cannot multiply bfloat16)."""

    def __init__(self, device: torch.device, dtype: torch.dtype, capacity: int) -> None:
        super().__init__(device, dtype, capacity)
        if interpreted():
            assert dtype != torch.bfloat16, BF16_DOT
            self.name = f"Triton kernels in the interpreter, {str(dtype).removeprefix('torch.')}"
        else:
            self.name = f"Triton kernels on {device}, {str(dtype).removeprefix('torch.')}"
        self._plans: dict[int | None, AttentionPlan] = {}
        """Of the step at hand, by window."""

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        self._plans.clear()
        super().run(forward, layout)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool = False) -> None:
        if add:
            super().rms_norm(x, weight, eps, out, add=True)
        else:
            add_rms_norm(x[: self.layout.tokens], weight, eps, out)

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        assert isinstance(weight, TorchMatrix)
        rows, transposed = self.layout.tokens, weight.values.t()
        if add:
            out[:rows].addmm_(x[:rows], transposed)
        else:
            torch.mm(x[:rows], transposed, out=out[:rows])

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        heads: int,
    ) -> None:
        layout, kv_heads, size = self.layout, caches[0].shape[1], caches[0].shape[3]
        parts = qkv[: layout.tokens].view(layout.tokens, heads + 2 * kv_heads, size)
        rotary(parts[:, : heads + kv_heads], *tables, layout.positions)
        write_cache(parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :], caches, layout.slots)

    def attention(
        self, qkv: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], how: Attention, out: torch.Tensor
    ) -> None:
        layout, kv_heads, size = self.layout, caches[0].shape[1], caches[0].shape[3]
        plan = self._plans.get(how.window)
        if plan is None:
            plan = self._plans[how.window] = plan_attention(layout, how.heads, kv_heads, how.window)
        queries = qkv[: layout.tokens].view(layout.tokens, -1, size)[:, : how.heads]
        target = out[: layout.tokens].view(layout.tokens, how.heads, size)
        paged_attention(
            queries, caches, layout.block_tables, plan, how.scale, target, window=how.window, softcap=how.softcap
        )

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        gated_mul(gate_up[:rows], out[:rows])

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        gated_mul(gate_up[:rows], out[:rows], gelu=True)

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        assert isinstance(head, TorchMatrix)
        normed = torch.empty_like(x)
        add_rms_norm(x, norm, eps, normed)
        return torch.nn.functional.linear(normed, head.values).float()

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        return draw(logits, settings)
