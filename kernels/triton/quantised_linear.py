"""A packed matrix of the Triton path: which kernel multiplies by it, and on what scales.

Activations beside fp8 weights are rounded to fp8 as well, by row, or by row and 128 inputs where the weights have blocks.
"""

from __future__ import annotations

import torch

from ..fp8 import FP8_BLOCK, group_scales, row_scales, to_fp8
from ..quantised_weight import Fp8Weight, Int4Weight, Int8Weight, QuantisedWeight
from .fp8_linear import fp8_linear
from .int4_linear import int4_linear
from .int8_linear import int8_linear


class QuantisedMatrix:
    def __init__(self, weight: QuantisedWeight, device: torch.device) -> None:
        self.outputs = weight.shape[0]
        self._weight = _moved(weight, device)

    @property
    def name(self) -> str:
        kinds = {Int8Weight: "int8", Int4Weight: "int4", Fp8Weight: "fp8 (with fp8 activations)"}
        return kinds[type(self._weight)]

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, K] -> [M, N] in x's type."""
        out = torch.empty(x.shape[0], self.outputs, dtype=x.dtype, device=x.device)
        weight = self._weight
        if isinstance(weight, Int8Weight):
            int8_linear(x, weight.values, weight.scales, out)
        elif isinstance(weight, Int4Weight):
            offsets = weight.zeros if weight.zeros is not None else weight.minima
            assert offsets is not None
            int4_linear(x, weight.values, offsets, weight.scales, out)
        else:
            scales = group_scales(x) if weight.blocks else row_scales(x)
            spread = _of_columns(scales, x.shape[1]) if weight.blocks else scales[:, None]
            fp8_linear(to_fp8(x, spread), scales, weight.values, weight.scales, out)
        return out

    def apply(self, x: torch.Tensor, out: torch.Tensor, add: bool) -> None:
        """out = x Wᵀ, or out += x Wᵀ."""
        result = self.product(x)
        if add:
            out += result
        else:
            out.copy_(result)


def _of_columns(scales: torch.Tensor, columns: int) -> torch.Tensor:
    return scales.repeat_interleave(FP8_BLOCK, dim=1)[:, :columns]


def _moved(weight: QuantisedWeight, device: torch.device) -> QuantisedWeight:
    """On the device; scales that enter the product weight by weight stay as the file has them."""
    if isinstance(weight, Int8Weight):
        return Int8Weight(weight.values.to(device), weight.scales.to(device))
    if isinstance(weight, Fp8Weight):
        return Fp8Weight(weight.values.to(device), weight.scales.to(device))
    zeros, minima = weight.zeros, weight.minima
    return Int4Weight(
        weight.values.to(device).contiguous(),
        weight.scales.to(device).contiguous(),
        None if zeros is None else zeros.to(device).contiguous(),
        None if minima is None else minima.to(device).contiguous(),
    )
