"""Linears in bfloat16 by oneDNN, packed once: for machines whose processor multiplies bfloat16 itself (AVX-512 BF16, AMX).

torch offers the packing as private operations, so they are tried before they are trusted. Weights stored in bfloat16 keep
their values; activations are rounded to bfloat16 at the input of a matrix, and sums are float32 inside it: what a model in
bfloat16 means. Measured with AMX: 14 ms per step of SmolLM2 at one sequence and 19 ms at 64, against 22 and 30 unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..linear import StoredWeight

ROWS = 32
"""The number of rows that oneDNN lays the weights out for; the packed copy serves any number."""
TOLERANCE = 2e-2
"""Of the largest value: one rounding of the inputs, one of the results."""


class OneDnnMatrix:
    def __init__(self, parts: Sequence[StoredWeight], dtype: torch.dtype) -> None:
        whole = torch.cat([part.dequantise().to(dtype) for part in parts])
        self.outputs, self.inputs = whole.shape
        self._dtype = dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(whole.contiguous(), ROWS)

    def apply(self, x: torch.Tensor, out: torch.Tensor, add: bool) -> None:
        """out = x Wᵀ, or out += x Wᵀ; float32 on both sides."""
        result = torch.ops.mkldnn._linear_pointwise(x.to(self._dtype), self._packed, None, "none", [], "")
        if add:
            out += result
        else:
            out.copy_(result)


def bfloat16_works() -> str | None:
    """None when packed bfloat16 linears run here and agree with plain torch; otherwise why not."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "the processor has no bfloat16 arithmetic"
        random = torch.Generator().manual_seed(1)
        weight, x = torch.randn(48, 64, generator=random).bfloat16(), torch.randn(5, 64, generator=random)
        out = torch.zeros(5, 48)
        OneDnnMatrix(
            [StoredWeight("bf16", (48, 64), weight.view(torch.uint8).numpy(), lambda: weight)], torch.bfloat16
        ).apply(x, out, add=False)
        expected = x @ weight.float().T
        difference = float((out - expected).abs().max() / expected.abs().max())
        return None if difference <= TOLERANCE else f"they differ from plain torch by {difference:.1e}"
    except (RuntimeError, AttributeError) as error:
        return f"this torch does not offer them ({str(error).splitlines()[0]})"
