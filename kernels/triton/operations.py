"""The operations of a model by Triton kernels, with torch's own matrix products between them.

The products are cuBLAS's: at 16 bits nothing written here would beat them. A residual is added in the product's epilogue
(`addmm_`). Matrices in 8 and 4 bits stay packed (quantised_linear.py). A step plans its attention once and shares the plan
among all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..batch import StepLayout
from ..low_rank import AdapterPairs
from ..operations import Attention, Experts, Matrix, TorchMatrix, TorchOperations, choose_experts
from ..quantised_weight import Weight, join
from ..sampling import DrawSettings
from .add_rms_norm import add_rms_norm
from .attention import AttentionPlan, paged_attention, plan_attention
from .configs import BF16_DOT, fp8_casts, interpreted
from .gated_mul import gated_mul
from .low_rank import AdapterPlan, adapt, plan_adapters
from .quantised_linear import QuantisedMatrix
from .rotary import rotary
from .sampling import draw, draw_on_device
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
        if not fp8_casts(device):
            self.cache_types = (torch.float32, torch.bfloat16, torch.float16)
        self._plans: dict[int | None, AttentionPlan] = {}
        """Of the step at hand, by window."""
        self._adapter_plan: AdapterPlan | None = None

    def pack(self, parts: Sequence[Weight]) -> Matrix:
        whole = join(parts)
        if whole is None:
            return super().pack(parts)
        matrix = QuantisedMatrix(whole, self.device)
        self.held.add(matrix.name)
        return matrix

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        self._plans.clear()
        self._layout = layout
        self._adapter_plan = plan_adapters(layout) if layout.adapters else None
        forward()
        self._layout = None

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool = False) -> None:
        if add:
            super().rms_norm(x, weight, eps, out, add=True)
        else:
            add_rms_norm(x[: self.layout.tokens], weight, eps, out)

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        rows = self.layout.tokens
        if isinstance(weight, QuantisedMatrix):
            weight.apply(x[:rows], out[:rows], add)
            return
        assert isinstance(weight, TorchMatrix)
        transposed = weight.values.t()
        if add:
            out[:rows].addmm_(x[:rows], transposed)
        else:
            torch.mm(x[:rows], transposed, out=out[:rows])

    def adapt(self, x: torch.Tensor, adapters: AdapterPairs, out: torch.Tensor) -> None:
        pairs, plan = adapters.stacked(), self._adapter_plan
        if pairs is not None and plan is not None:
            adapt(x, pairs, plan, out)

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        how: Attention,
    ) -> None:
        layout, heads, kv_heads, size = self.layout, how.heads, caches[0].shape[1], caches[0].shape[3]
        parts = qkv[: layout.tokens].view(layout.tokens, heads + 2 * kv_heads, size)
        rotary(parts[:, : heads + kv_heads], *tables, layout.positions)
        write_cache(parts[:, heads : heads + kv_heads], parts[:, heads + kv_heads :], caches, layout.slots, how.scales)

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
            queries, caches, layout.block_tables, plan, how.scale, target,
            window=how.window, softcap=how.softcap, scales=how.scales,
        )  # fmt: skip

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        gated_mul(gate_up[:rows], out[:rows])

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        gated_mul(gate_up[:rows], out[:rows], gelu=True)

    def mixture(self, x: torch.Tensor, experts: Experts, out: torch.Tensor) -> None:
        rows = self.layout.tokens
        scores = _product(x[:rows], experts.router)
        for (gate_up, down), tokens, weights in choose_experts(scores, experts):
            both = _product(x[tokens], gate_up)
            gated = torch.empty(len(tokens), both.shape[1] // 2, dtype=both.dtype, device=both.device)
            gated_mul(both, gated)
            out.index_add_(0, tokens, _product(gated, down) * weights[:, None].to(x.dtype))

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        normed = torch.empty_like(x)
        add_rms_norm(x, norm, eps, normed)
        if isinstance(head, QuantisedMatrix):
            return head.product(normed).float()
        assert isinstance(head, TorchMatrix)
        return torch.nn.functional.linear(normed, head.values).float()

    @property
    def draws_on_device(self) -> Callable[[torch.Tensor, DrawSettings], torch.Tensor] | None:
        return draw_on_device

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        return draw(logits, settings)


def _product(x: torch.Tensor, weight: Matrix) -> torch.Tensor:
    if isinstance(weight, QuantisedMatrix):
        return weight.product(x)
    assert isinstance(weight, TorchMatrix)
    return torch.nn.functional.linear(x, weight.values)
