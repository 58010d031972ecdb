"""Weights in 8 and 4 bits as the kernels for rounded activations (int8.py) read them, and whether this processor can run those.

A panel is 32 outputs; within it, for each group of 32 inputs: the 32 scales (float16), of q4_1 also the 32 minima, then for each
four of inputs the 32 outputs' four bytes. q8_0 holds q + 128; in 4 bits a byte's low half is input k, its high half k + 16.
A row of x is for each group its 32 high bytes and its 32 low ones, then for each group 16 bytes more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..linear import GROUP, SCALE_BYTES, StoredWeight
from .pairs import WIDE, features
from .tape import Tape

GROUP_BYTES = {"q8_0": 64 + 1024, "q4_1": 128 + 512, "q4_0": 64 + 512}
ROW_EXTRA = 16
"""Bytes beside a group of a rounded row."""
TOLERANCE = 1e-4
"""Of the largest value, in the self-test: what rounding the activations to 16 bits costs, and more."""


@dataclass(frozen=True, slots=True)
class ByteMatrix:
    """uint8 [panels, groups, bytes]; outputs are padded with zeros to whole panels."""

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


def row_bytes(inputs: int) -> int:
    """Of a rounded row."""
    return 2 * inputs + inputs // GROUP * ROW_EXTRA


def pack_bytes(parts: Sequence[StoredWeight]) -> ByteMatrix:
    """The parts' rows one after the other (all of one storage in GROUP_BYTES and one width)."""
    storage, inputs = parts[0].storage, parts[0].shape[1]
    raw = parts[0].raw if len(parts) == 1 else np.concatenate([part.raw for part in parts])
    outputs, groups, scales = raw.shape[0], inputs // GROUP, SCALE_BYTES[storage]
    if short := -outputs % WIDE:
        raw = np.concatenate([raw, np.zeros((short, raw.shape[1]), dtype=np.uint8)])
    blocks = raw.reshape(-1, WIDE, groups, raw.shape[1] // groups)
    data = torch.empty(blocks.shape[0], groups, GROUP_BYTES[storage], dtype=torch.uint8)
    packed, at = data.numpy(), 0
    for first in range(0, scales, 2):
        scale = np.ascontiguousarray(blocks[..., first : first + 2]).view(np.uint16)[..., 0]
        np.copyto(packed[..., at : at + 64].view(np.uint16), scale.transpose(0, 2, 1))
        at += 64
    fours = np.ascontiguousarray(blocks[..., scales:]).view(np.uint32).transpose(0, 2, 3, 1)
    target = packed[..., at:].view(np.uint32).reshape(fours.shape)
    np.copyto(target, fours ^ np.uint32(0x80808080) if storage == "q8_0" else fours)
    return ByteMatrix(storage, outputs, inputs, data)


def int8_works(threads: int) -> str | None:
    """None when this processor multiplies bytes and the kernels agree with plain torch; otherwise why not."""
    if "avx512vnni" not in features():
        return "the processor has no AVX-512 VNNI"
    from . import int8

    random = np.random.default_rng(1)
    x, out = torch.from_numpy(random.standard_normal((7, 64), dtype=np.float32)), torch.zeros(7, 2 * WIDE)
    raw = random.integers(0, 256, (48, 2, 34), dtype=np.uint8)
    raw[..., :2] = np.array([0.01], dtype=np.float16).view(np.uint8)
    values = torch.from_numpy(raw[..., 2:].view(np.int8).reshape(48, 64).astype(np.float32)) * float(np.float16(0.01))
    matrix = pack_bytes([StoredWeight("q8_0", (48, 64), raw.reshape(48, -1), lambda: values)])
    rounded, header = torch.empty(7, row_bytes(64), dtype=torch.uint8), np.array([7, 0], dtype=np.int64)
    tape = Tape(2)
    tape.add(int8.round_rows, header, [x.data_ptr(), 256, rounded.data_ptr(), row_bytes(64), 2], (x, rounded))
    arguments = [
        rounded.data_ptr(), row_bytes(64), matrix.data.data_ptr(), 2, matrix.panels, out.data_ptr(), 8 * WIDE, 0, 1,
    ]  # fmt: skip
    tape.add(int8.linear_q8_0, header, arguments, (rounded, matrix, out))
    tape.run(threads)
    expected = x @ values.T
    difference = float((out[:, :48] - expected).abs().max() / expected.abs().max())
    return None if difference <= TOLERANCE else f"their products differ from plain torch by {difference:.1e}"
