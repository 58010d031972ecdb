"""Tile sizes by device and shape: a table, not an autotuner (which the interpreter refuses, and which makes a first step slow).

The rows for GPUs are chosen from the published shapes of such kernels, not measured here; `python -m bench.gpu --tune` prints
measured rows to put in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from triton import knobs

BF16_DOT = "Triton's interpreter multiplies bfloat16 bit patterns: use float32 or float16 there"


@dataclass(frozen=True, slots=True)
class Tiles:
    """`m` rows, `n` columns (or keys), `k` of the inner dimension per step of a program; warps and pipeline stages."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 2


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """`generation`: interpreter, ampere (8.0 to 8.8, and whatever is older), ada (8.9) or hopper (9.0 and newer)."""

    generation: str
    processors: int


def interpreted() -> bool:
    """True where kernels run on the CPU, in Triton's interpreter (TRITON_INTERPRET=1 when triton was first imported)."""
    return bool(knobs.runtime.interpret)


def nothing_compiled() -> bool:
    """No earlier start has left compiled kernels in Triton's cache."""
    return next(Path(knobs.cache.dir).glob("*/*.json"), None) is None


@cache
def device_kind(device: torch.device) -> DeviceKind:
    if interpreted():
        return DeviceKind("interpreter", 1)
    properties = torch.cuda.get_device_properties(device)
    version = (properties.major, properties.minor)
    generation = "hopper" if version >= (9, 0) else "ada" if version >= (8, 9) else "ampere"
    return DeviceKind(generation, properties.multi_processor_count)


def fp8_casts(device: torch.device) -> bool:
    """Whether kernels can make fp8 numbers there, and read them."""
    return device_kind(device).generation != "ampere"


ATTENTION_PREFILL = {
    "interpreter": Tiles(m=16, n=32, k=0),
    "ampere": Tiles(m=64, n=32, k=0, warps=4, stages=2),
    "ada": Tiles(m=64, n=32, k=0, warps=4, stages=2),
    "hopper": Tiles(m=128, n=64, k=0, warps=8, stages=3),
}
ATTENTION_DECODE = {
    "interpreter": Tiles(m=16, n=32, k=0),
    "ampere": Tiles(m=16, n=32, k=0, warps=4, stages=3),
    "ada": Tiles(m=16, n=32, k=0, warps=4, stages=3),
    "hopper": Tiles(m=16, n=64, k=0, warps=4, stages=4),
}
MATMUL = {
    # Few rows (decode): narrow tiles, so that there are programs enough to read the weights with.
    ("interpreter", False): Tiles(m=16, n=32, k=32),
    ("interpreter", True): Tiles(m=16, n=32, k=32),
    ("ampere", False): Tiles(m=16, n=64, k=128, warps=4, stages=3),
    ("ampere", True): Tiles(m=64, n=128, k=32, warps=4, stages=3),
    ("ada", False): Tiles(m=16, n=64, k=128, warps=4, stages=3),
    ("ada", True): Tiles(m=64, n=128, k=32, warps=4, stages=3),
    ("hopper", False): Tiles(m=16, n=64, k=128, warps=4, stages=4),
    ("hopper", True): Tiles(m=128, n=128, k=64, warps=8, stages=3),
}


def attention_tiles(device: torch.device, *, decode: bool) -> Tiles:
    return (ATTENTION_DECODE if decode else ATTENTION_PREFILL)[device_kind(device).generation]


def matmul_tiles(device: torch.device, rows: int) -> Tiles:
    return MATMUL[device_kind(device).generation, rows > 16]


def splits_for(device: torch.device, programs: int, steps: int) -> int:
    """Into how many parts to cut a sum of `steps` tiles when `programs` programs would leave processors idle (a power of two)."""
    wanted, splits = 2 * device_kind(device).processors, 1
    while programs * splits * 2 <= wanted and steps >= splits * 4 and splits < 64:
        splits *= 2
    return splits
