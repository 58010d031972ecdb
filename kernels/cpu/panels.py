"""Matrices at their own bits, as the linears read them: runs of panels, and the kernel for each storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..linear import Panels, StoredWeight, pack
from . import linear
from .int8_weights import GROUP_BYTES, ByteMatrix, pack_bytes
from .pairs import WIDE

_LINEAR = {
    "f32": linear.linear_f32,
    "bf16": linear.linear_bf16,
    "f16": linear.linear_f16,
    "q8_0": linear.linear_q8_0,
    "q4_1": linear.linear_q4_1,
    "q4_0": linear.linear_q4_0,
}


class PanelMatrix:
    """One matrix as runs of panels; several where its parts are stored differently."""

    def __init__(self, runs: list[Panels | ByteMatrix]) -> None:
        self.runs = runs

    @property
    def outputs(self) -> int:
        return sum(run.outputs for run in self.runs)


def pack_panels(parts: Sequence[StoredWeight], *, int8: bool) -> PanelMatrix:
    """The parts' rows one after the other. `int8`: those in 8 and 4 bits for activations rounded to 16 (int8.py)."""
    alike = len({part.storage for part in parts}) == 1
    runs = [parts] if alike else [[part] for part in parts]
    return PanelMatrix([_packed(run, int8) for run in runs])


def _packed(run: Sequence[StoredWeight], int8: bool) -> Panels | ByteMatrix:
    """Parts of one storage. Another run may follow only where this one fills its panels."""
    whole = sum(part.shape[0] for part in run) % WIDE == 0
    return pack_bytes(run) if int8 and run[0].storage in GROUP_BYTES and whole else pack(run)


def kernel_of(run: Panels | ByteMatrix) -> Any:
    if not isinstance(run, ByteMatrix):
        return _LINEAR[run.storage]
    from . import int8

    return {"q8_0": int8.linear_q8_0, "q4_1": int8.linear_q4_1, "q4_0": int8.linear_q4_0}[run.storage]
