"""Random numbers addressed by what they are for, not by when they are drawn.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): key = the request's seed, counter =
(position of the token in the output, index of the choice). So a token's random number does not depend on its neighbours in
the batch, on preemption or on how the prompt was cut into steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
ROUNDS = 10


def philox(
    counter: tuple[NDArray[np.uint64], ...], key: tuple[NDArray[np.uint64], ...]
) -> tuple[NDArray[np.uint64], ...]:
    """Four 32-bit words per element (in uint64 arrays) from four counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = _MULTIPLY[0] * c0, _MULTIPLY[1] * c2
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: list[int], choices: list[int], positions: list[int]) -> NDArray[np.float64]:
    """One number in [0, 1) of 53 bits per (64-bit seed, choice index, position)."""
    seed = np.array(seeds, dtype=np.uint64)
    zero = np.zeros(len(seeds), dtype=np.uint64)
    counter = (np.array(positions, dtype=np.uint64), np.array(choices, dtype=np.uint64), zero, zero)
    first, second, _, _ = philox(counter, (seed & _LOW, seed >> _HALF))
    high, low = first >> np.uint64(5), second >> np.uint64(6)
    return (high * np.uint64(1 << 26) + low).astype(np.float64) / float(1 << 53)
