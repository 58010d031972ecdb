"""Matrices in bfloat16 as the pair kernels (bfloat16.py) read them, and whether this processor can run those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch
from llvmlite import binding

from ..linear import StoredWeight, stored
from .tape import Tape

WIDE = 32
"""Outputs per panel of pairs."""
TOLERANCE = 1e-5
"""Of the largest value: both compute from the same bfloat16 inputs, and sums are float32."""


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """bfloat16 [panels, inputs / 2, 32 outputs, 2 inputs] as int32; outputs are padded with zeros to whole panels."""

    outputs: int
    inputs: int
    data: torch.Tensor

    @property
    def panels(self) -> int:
        return self.data.shape[0]


def pack_pairs(parts: Sequence[StoredWeight]) -> PairMatrix:
    """The parts' rows one after the other (all stored in bfloat16, of one width)."""
    outputs, inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
    panels = -(-outputs // WIDE)
    rows = np.zeros((panels * WIDE, inputs // 2), dtype=np.uint32)
    np.concatenate([part.raw.view(np.uint32).reshape(part.shape[0], -1) for part in parts], out=rows[:outputs])
    data = torch.empty(panels, inputs // 2, WIDE, dtype=torch.int32)
    np.copyto(data.numpy().view(np.uint32), rows.reshape(panels, WIDE, -1).transpose(0, 2, 1))
    return PairMatrix(outputs, inputs, data)


def features() -> set[str]:
    """The processor's instruction sets, as far as compiled code may use them (NUMBA_CPU_FEATURES can take some away)."""
    allowed = numba.config.CPU_FEATURES
    text = binding.get_host_cpu_features().flatten() if allowed is None else str(allowed)
    return {name[1:] for name in text.split(",") if name.startswith("+")}


def has_amx() -> bool:
    """Whether matrices in bfloat16 are quicker by oneDNN, which multiplies tiles there. Attention is not."""
    return "amx-bf16" in features()


def pairs_work(threads: int) -> str | None:
    """None when this processor multiplies pairs of bfloat16 and the kernel agrees with plain torch; otherwise why not."""
    if "avx512bf16" not in features():
        return "the processor has no AVX-512 BF16"
    from .bfloat16 import linear_pairs

    random = torch.Generator().manual_seed(1)
    weight = torch.randn(48, 64, generator=random).bfloat16()
    x, out = torch.randn(15, 64, generator=random).bfloat16(), torch.zeros(15, 2 * WIDE)
    matrix, tape = pack_pairs([stored(weight)]), Tape(1)
    header = np.array([len(x), 0], dtype=np.int64)
    arguments = [
        x.data_ptr(), 2 * 64, matrix.data.data_ptr(), 32, matrix.panels, out.data_ptr(), 4 * 2 * WIDE, 0, 1,
    ]  # fmt: skip
    tape.add(linear_pairs, header, arguments, (x, matrix, out))
    tape.run(threads)
    expected = x.float() @ weight.float().T
    difference = float((out[:, :48] - expected).abs().max() / expected.abs().max())
    return None if difference <= TOLERANCE else f"its products differ from plain torch by {difference:.1e}"
