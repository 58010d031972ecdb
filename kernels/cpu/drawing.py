"""A token per row by the sampling kernel, whose scratch stays from step to step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..linear import PANEL
from ..sampling import DrawSettings
from . import sampling
from .tape import Tape


class Drawing:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._scratch: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        """As `Operations.draw`."""
        rows, size = logits.shape
        width = -(-size // PANEL) * PANEL
        if logits.stride(0) % PANEL or logits.stride(1) != 1 or logits.stride(0) < width:
            logits = torch.nn.functional.pad(logits, (0, width - size))
        values = np.array(
            [settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.uniform], dtype=np.float64
        ).T.copy()
        tokens: NDArray[np.int64] = np.empty(rows, dtype=np.int64)
        per_thread = (2 * width + PANEL) * 4
        if len(self._scratch) < self._threads * per_thread:
            self._scratch = np.zeros(self._threads * per_thread, dtype=np.uint8)
        header = np.array([rows, 0], dtype=np.int64)
        arguments = [
            logits.data_ptr(), logits.stride(0) * logits.element_size(), size, values.ctypes.data, tokens.ctypes.data,
            self._scratch.ctypes.data, per_thread,
        ]  # fmt: skip
        tape = Tape(1)
        tape.add(sampling.draw, header, arguments, (logits, values, tokens))
        tape.run(min(self._threads, rows))
        return [None if token < 0 else token for token in tokens.tolist()]
