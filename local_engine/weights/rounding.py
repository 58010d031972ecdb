"""Quantising while loading: the matrices of layers in 8 or 4 bits, whatever the file has. Embedding, head, norms, biases and the
routers of mixtures stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from kernels.linear import stored
from kernels.quantised_weight import Fp8Weight, Int4Weight, Int8Weight, Weight, to_fp8_rows, to_int4, to_int8

from ..models.config import ModelConfig
from .embedding import Embedding
from .source import WeightSource

SMALLEST_GROUP = 32
_ROUTER = re.compile(r"\.(mlp|block_sparse_moe)\.gate\.weight$")


class RoundedSource:
    """Another source with its layers' matrices rounded as one of config.ROUNDED says. int4 leaves alone what has no whole groups
    of 32 inputs, or of 8 outputs."""

    def __init__(self, source: WeightSource, how: str) -> None:
        self._source, self._round = source, _rounding(how)
        self.config: ModelConfig = source.config
        self.precision = f"{source.precision} rounded to {how}"
        self.stores_bfloat16 = source.stores_bfloat16
        self.stored_as: str | None = how

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def matrix(self, name: str) -> Weight:
        weight = self._source.matrix(name)
        if ".layers." not in name or _ROUTER.search(name):
            return weight
        return self._round(weight.dequantise())

    def vector(self, name: str) -> torch.Tensor:
        return self._source.vector(name)

    def embedding(self, name: str) -> Embedding:
        return self._source.embedding(name)

    def rotary_factors(self) -> torch.Tensor | None:
        return self._source.rotary_factors()


def _rounding(how: str) -> Callable[[torch.Tensor], Weight]:
    rules: dict[str, Callable[[torch.Tensor], Int8Weight | Int4Weight | Fp8Weight]] = {
        "int8": to_int8,
        "fp8": to_fp8_rows,
        "int4": lambda weight: to_int4(weight, 32),
        "int4-g64": lambda weight: to_int4(weight, _group(weight, 64)),
        "int4-g128": lambda weight: to_int4(weight, _group(weight, 128)),
    }
    rule = rules[how]

    def apply(weight: torch.Tensor) -> Weight:
        outputs, inputs = weight.shape
        if how.startswith("int4") and (inputs % SMALLEST_GROUP or outputs % 8):
            return stored(weight)
        return rule(weight)

    return apply


def _group(weight: torch.Tensor, wished: int) -> int:
    """The largest group up to `wished` that divides the inputs."""
    while weight.shape[1] % wished:
        wished //= 2
    return wished
