"""y = x Wᵀ (+ y): weights as a file stores them, and as the CPU's panels hold them.

A `StoredWeight` is a matrix at its own bits: plain float types as a torch tensor, ggml's block types as their bytes. The
reference is `torch.nn.functional.linear` on the dequantised matrix. Panels are described in cpu/linear.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

PANEL = 16
"""Outputs per panel."""
GROUP = 32
"""Inputs per group; every ggml block type here has blocks of 32."""

SCALE_BYTES = {"f32": 0, "bf16": 0, "f16": 0, "q8_0": 2, "q4_1": 4, "q4_0": 2}
"""Bytes of scale and minimum at the head of a block, per output."""
VALUE_BYTES = {"f32": 128, "bf16": 64, "f16": 64, "q8_0": 32, "q4_1": 16, "q4_0": 16}
"""Bytes of 32 values of one output."""
FLOATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A matrix of `shape` (outputs, inputs) in `storage`: raw bytes [outputs, bytes per row], and how to widen it."""

    storage: str
    shape: tuple[int, int]
    raw: NDArray[np.uint8]
    dequantise: Callable[[], torch.Tensor]

    def rows(self, order: NDArray[np.int64]) -> StoredWeight:
        """These rows of it, in this order."""

        def dequantise() -> torch.Tensor:
            return self.dequantise()[torch.from_numpy(order)]

        return StoredWeight(self.storage, (len(order), self.shape[1]), self.raw[order], dequantise)

    @property
    def block(self) -> int:
        """Inputs of one output that lie in one piece."""
        return 1 if self.storage in FLOATS.values() else GROUP

    def columns(self, inputs: range) -> StoredWeight:
        """A run of its inputs. Raises ValueError where that would cut a block."""
        check_cut(inputs, self.block, self.shape[1])
        row_bytes = self.raw.shape[1] * self.block // self.shape[1]
        raw = self.raw[:, inputs.start // self.block * row_bytes : inputs.stop // self.block * row_bytes]
        return StoredWeight(
            self.storage,
            (self.shape[0], len(inputs)),
            np.ascontiguousarray(raw),
            lambda: self.dequantise()[:, inputs.start : inputs.stop],
        )


def check_cut(inputs: range, block: int, width: int) -> None:
    """Raises ValueError where a run of `width` inputs begins or ends within a block."""
    if inputs.start % block or (inputs.stop % block and inputs.stop != width):
        raise ValueError(f"inputs {inputs.start} to {inputs.stop} cut a group of {block} inputs")


def stored(tensor: torch.Tensor) -> StoredWeight:
    """A float matrix as it is."""
    raw = tensor.contiguous().view(torch.uint8).numpy()
    rows, columns = tensor.shape
    return StoredWeight(FLOATS[tensor.dtype], (rows, columns), raw, lambda: tensor)


@dataclass(frozen=True, slots=True)
class Panels:
    """A packed matrix: uint8 [panels, groups, bytes]. Outputs are padded with zeros to whole panels."""

    storage: str
    outputs: int
    inputs: int
    data: torch.Tensor

    @property
    def panels(self) -> int:
        return self.data.shape[0]

    @property
    def groups(self) -> int:
        return self.data.shape[1]


def packs(storage: str, inputs: int) -> bool:
    """True when `pack` can hold such a matrix."""
    return storage in VALUE_BYTES and inputs % GROUP == 0


def pack(parts: Sequence[StoredWeight]) -> Panels:
    """Panels of the parts' rows one after the other (all of one storage and width)."""
    storage, inputs = parts[0].storage, parts[0].shape[1]
    raw = parts[0].raw if len(parts) == 1 else np.concatenate([part.raw for part in parts])
    outputs, groups = raw.shape[0], inputs // GROUP
    short = -outputs % PANEL
    if short:
        raw = np.concatenate([raw, np.zeros((short, raw.shape[1]), dtype=np.uint8)])
    scales, values = SCALE_BYTES[storage], VALUE_BYTES[storage]
    blocks = raw.reshape(-1, PANEL, groups, scales + values)
    panels = blocks.shape[0]
    packed = np.empty((panels, groups, PANEL * (scales + values)), dtype=np.uint8)
    at = 0
    for first in range(0, scales, 2):
        scale = np.ascontiguousarray(blocks[..., first : first + 2]).view(np.uint16)
        target = packed[..., at : at + 2 * PANEL].view(np.uint16)
        np.copyto(target, scale[..., 0].transpose(0, 2, 1))
        at += 2 * PANEL
    element = {128: np.uint32, 64: np.uint16}.get(values, np.uint8)
    weights = np.ascontiguousarray(blocks[..., scales:]).view(element).transpose(0, 2, 3, 1)
    np.copyto(packed[..., at:].view(element).reshape(weights.shape), weights)
    return Panels(storage, outputs, inputs, torch.from_numpy(packed))
