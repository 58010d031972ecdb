"""A matrix in 8 or 4 bits as a quantiser left it, with its scales: what the packed kernels take as it is, and others widen.

`narrowest` is the smallest of the CPU's storages (linear.py) that holds exactly the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .fp8 import FP8_BLOCK, row_scales, spread_blocks, to_fp8
from .linear import GROUP, StoredWeight, check_cut, stored
from .quantised import NIBBLES, awq_pack, awq_unpack, quantise_int8

MIDDLE = 8
"""The zero point of symmetric 4-bit weights."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """values int8 [N, K], scales float32 [N]."""

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def dequantise(self) -> torch.Tensor:
        return self.values.float() * self.scales[:, None]

    def rows(self, order: NDArray[np.int64]) -> Int8Weight:
        at = torch.from_numpy(order)
        return Int8Weight(self.values[at], self.scales[at])

    @property
    def block(self) -> int:
        return 1

    def columns(self, inputs: range) -> Int8Weight:
        return Int8Weight(self.values[:, inputs.start : inputs.stop].contiguous(), self.scales)

    def narrowest(self) -> StoredWeight:
        outputs, inputs = self.shape
        if inputs % GROUP or not _is_half(self.scales):
            return _narrowest_float(self.dequantise())
        scales = self.scales.half()[:, None, None].expand(outputs, inputs // GROUP, 1)
        return _blocks("q8_0", [scales, self.values.view(outputs, -1, GROUP)], self.shape, self.dequantise)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w = (q - zero) scale, or q scale + minimum: values int32 [K, N / 8], scales [K / group, N] of any float type, and one of
    zeros int32 [K / group, N / 8] and minima [K / group, N]. Eight outputs to an int32, in AWQ's order (quantised.py).
    Raises ValueError for shapes that do not fit together.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    minima: torch.Tensor | None = None

    def __post_init__(self) -> None:
        assert (self.zeros is None) != (self.minima is None), "zero points or minima"
        outputs, inputs = self.shape
        groups = self.scales.shape[0]
        offsets = (groups, outputs // NIBBLES) if self.minima is None else (groups, outputs)
        given = self.zeros if self.minima is None else self.minima
        if inputs % groups or self.scales.shape[1] != outputs or given is None or tuple(given.shape) != offsets:
            raise ValueError(f"{outputs} x {inputs} weights do not fit scales of {tuple(self.scales.shape)}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[1] * NIBBLES, self.values.shape[0]

    @property
    def group(self) -> int:
        return self.values.shape[0] // self.scales.shape[0]

    def dequantise(self) -> torch.Tensor:
        scales = self._spread(self.scales.float())
        if self.zeros is not None:
            return ((awq_unpack(self.values) - self._spread(awq_unpack(self.zeros))) * scales).T.contiguous()
        assert self.minima is not None
        return (awq_unpack(self.values) * scales + self._spread(self.minima.float())).T.contiguous()

    def _spread(self, of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.repeat_interleave(self.group, dim=0)

    def rows(self, order: NDArray[np.int64]) -> Int4Weight:
        at = torch.from_numpy(order)
        return Int4Weight(
            awq_pack(awq_unpack(self.values)[:, at]),
            self.scales[:, at].contiguous(),
            None if self.zeros is None else awq_pack(awq_unpack(self.zeros)[:, at]),
            None if self.minima is None else self.minima[:, at].contiguous(),
        )

    @property
    def block(self) -> int:
        return self.group

    def columns(self, inputs: range) -> Int4Weight:
        """Raises ValueError where that would cut a group."""
        check_cut(inputs, self.group, self.shape[1])
        groups = slice(inputs.start // self.group, inputs.stop // self.group)
        return Int4Weight(
            self.values[inputs.start : inputs.stop].contiguous(),
            self.scales[groups].contiguous(),
            None if self.zeros is None else self.zeros[groups].contiguous(),
            None if self.minima is None else self.minima[groups].contiguous(),
        )

    def narrowest(self) -> StoredWeight:
        outputs, inputs = self.shape
        if self.group % GROUP or not _is_half(self.scales):
            return _narrowest_float(self.dequantise())
        zeros = None if self.zeros is None else awq_unpack(self.zeros)
        minima = -zeros * self.scales.float() if zeros is not None else self.minima
        assert minima is not None

        def of_blocks(of_groups: torch.Tensor) -> torch.Tensor:
            return of_groups.half().T.repeat_interleave(self.group // GROUP, dim=1)[..., None]

        codes = awq_unpack(self.values).T.to(torch.uint8).reshape(outputs, inputs // GROUP, 2, GROUP // 2)
        packed = codes[:, :, 0] | codes[:, :, 1] << 4
        if zeros is not None and bool((zeros == MIDDLE).all()):
            return _blocks("q4_0", [of_blocks(self.scales), packed], self.shape, self.dequantise)
        if not _is_half(minima):
            return _narrowest_float(self.dequantise())
        return _blocks("q4_1", [of_blocks(self.scales), of_blocks(minima), packed], self.shape, self.dequantise)


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """values float8_e4m3fn [N, K], scales float32 [N] or, of blocks of 128 x 128, [ceil(N / 128), ceil(K / 128)]."""

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def blocks(self) -> bool:
        return self.scales.dim() == 2

    def dequantise(self) -> torch.Tensor:
        scales = spread_blocks(self.scales, *self.shape) if self.blocks else self.scales[:, None]
        return self.values.float() * scales

    def rows(self, order: NDArray[np.int64]) -> Fp8Weight | StoredWeight:
        at = torch.from_numpy(order)
        values = self.values.view(torch.uint8)[at].view(torch.float8_e4m3fn)
        if not self.blocks:
            return Fp8Weight(values, self.scales[at])
        blocks = _whole_blocks(order, self.shape[0])
        if blocks is None:  # rows that move leave their blocks
            return stored(self.dequantise()[at])
        return Fp8Weight(values, self.scales[torch.from_numpy(blocks)])

    @property
    def block(self) -> int:
        return FP8_BLOCK if self.blocks else 1

    def columns(self, inputs: range) -> Fp8Weight:
        """Raises ValueError where that would cut a block."""
        values = self.values.view(torch.uint8)[:, inputs.start : inputs.stop].contiguous().view(torch.float8_e4m3fn)
        if not self.blocks:
            return Fp8Weight(values, self.scales)
        check_cut(inputs, FP8_BLOCK, self.shape[1])
        return Fp8Weight(values, self.scales[:, inputs.start // FP8_BLOCK : -(-inputs.stop // FP8_BLOCK)].contiguous())

    def narrowest(self) -> StoredWeight:
        return _narrowest_float(self.dequantise())


QuantisedWeight = Int8Weight | Int4Weight | Fp8Weight
Weight = StoredWeight | QuantisedWeight


def as_stored(parts: Sequence[Weight]) -> list[StoredWeight]:
    """Each in a storage that the CPU's kernels know, with the same values."""
    return [part if isinstance(part, StoredWeight) else part.narrowest() for part in parts]


def join(parts: Sequence[Weight]) -> QuantisedWeight | None:
    """One matrix with the parts' outputs one after the other; None where their kinds or groups do not allow it."""
    first = parts[0]
    if isinstance(first, Int8Weight):
        int8 = [part for part in parts if isinstance(part, Int8Weight)]
        if len(int8) == len(parts):
            return Int8Weight(torch.cat([each.values for each in int8]), torch.cat([each.scales for each in int8]))
    if isinstance(first, Int4Weight):
        int4 = [part for part in parts if isinstance(part, Int4Weight)]
        if len(int4) == len(parts) and len({(each.group, each.zeros is None, each.scales.dtype) for each in int4}) == 1:
            return Int4Weight(
                torch.cat([each.values for each in int4], dim=1),
                torch.cat([each.scales for each in int4], dim=1),
                torch.cat([each.zeros for each in int4 if each.zeros is not None], dim=1)
                if first.minima is None
                else None,
                torch.cat([each.minima for each in int4 if each.minima is not None], dim=1)
                if first.zeros is None
                else None,
            )
    if isinstance(first, Fp8Weight):
        fp8 = [part for part in parts if isinstance(part, Fp8Weight) and part.blocks == first.blocks]
        whole = not first.blocks or all(each.shape[0] % FP8_BLOCK == 0 for each in fp8[:-1])
        if len(fp8) == len(parts) and whole:
            values = torch.cat([each.values.view(torch.uint8) for each in fp8]).view(torch.float8_e4m3fn)
            return Fp8Weight(values, torch.cat([each.scales for each in fp8]))
    return None


def to_int8(weight: torch.Tensor) -> Int8Weight:
    """[N, K] rounded with one scale per output. Scales are float16 numbers, so that the CPU keeps 8 bits too."""
    _, scales = quantise_int8(weight)
    scales = scales.half().float().clamp(min=float(torch.finfo(torch.float16).tiny))
    return Int8Weight((weight.float() / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales)


def to_int4(weight: torch.Tensor, group: int) -> Int4Weight:
    """[N, K] rounded to 16 steps between the least and the greatest of each group of inputs (ggml's Q4_1 for groups of 32)."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, inputs // group, group)
    least, greatest = groups.amin(dim=-1).half(), groups.amax(dim=-1)
    step = ((greatest - least.float()) / 15).half()
    divisor = torch.where(step > 0, step.float(), torch.ones_like(greatest))
    codes = ((groups - least.float()[..., None]) / divisor[..., None]).round().clamp(0, 15)
    words = awq_pack(codes.view(outputs, inputs).T.contiguous())
    return Int4Weight(words, step.T.contiguous(), minima=least.T.contiguous())


def to_fp8_rows(weight: torch.Tensor) -> Fp8Weight:
    """[N, K] with one scale per output."""
    scales = row_scales(weight)
    return Fp8Weight(to_fp8(weight, scales[:, None]), scales)


def _whole_blocks(order: NDArray[np.int64], outputs: int) -> NDArray[np.int64] | None:
    """The blocks of 128 rows that `order` takes whole and each in its own order; None where it takes others."""
    first = order[::FP8_BLOCK]
    runs = [np.arange(start, min(start + FP8_BLOCK, outputs)) for start in first]
    whole = not (first % FP8_BLOCK).any() and np.array_equal(np.concatenate(runs), order)
    return first // FP8_BLOCK if whole else None


def _is_half(values: torch.Tensor) -> bool:
    return bool((values.half().float() == values.float()).all())


def _narrowest_float(values: torch.Tensor) -> StoredWeight:
    return stored(values.half()) if _is_half(values) else stored(values)


def _blocks(
    storage: str, fields: Sequence[torch.Tensor], shape: tuple[int, int], dequantise: Callable[[], torch.Tensor]
) -> StoredWeight:
    """ggml's blocks out of each field of them [N, K / 32, …]."""
    parts = [field.contiguous().view(torch.uint8) for field in fields]
    raw = torch.cat([part.reshape(shape[0], shape[1] // GROUP, -1) for part in parts], dim=-1)
    return StoredWeight(storage, shape, raw.reshape(shape[0], -1).numpy(), dequantise)
