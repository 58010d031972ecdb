"""One launch per step: a tape of operations that all threads of torch's pool walk together.

Starting a parallel region costs microseconds, and a step of a small model has hundreds of operations. So operations are rows
of a table: the address of a compiled function and its arguments. `run` starts one region in libgomp (the very library that
torch uses: one pool, no second runtime) whose threads take tasks of a row from an atomic counter and go on to the next row
as soon as all tasks of this one are done. There is no barrier: a thread that the system has put aside between two tasks
holds up nobody, which matters where the engine shares its cores with the gateway. Rows hold addresses of buffers that never
move; what changes from step to step (how many tokens, how many sequences) stands in a small header that the operations read.
So a tape is recorded once and replayed for ever.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import binding
from numba import types
from numpy.typing import NDArray

from .compiled import use_cache_folder
from .vector import address_of, atomic_add, atomic_read, call_pointer, read_int

logger = logging.getLogger(__name__)

ROW = 32
"""int64 values per row: tasks taken, scratch slots taken, function, header, up to 26 arguments, tasks in all, tasks done."""
TASKS, SLOTS, FUNCTION, HEADER, ARGUMENTS, TOTAL, DONE = 0, 1, 2, 3, 4, 30, 31
PATIENCE = 4096
"""Looks at a counter before a waiting thread offers its core to another process (tens of microseconds)."""

_yield = types.ExternalFunction("metergate_yield", types.int32())


def _torch_libgomp() -> ctypes.CDLL | None:
    """Where torch's own calls of OpenMP end, found as the linker finds it: in what is loaded for all (LD_PRELOAD), else among
    libtorch_cpu's dependencies. Other packages bring a libgomp along, too (sentencepiece, by way of gguf), and the team of a
    second one would wait for work beside torch's, at full speed. None where there is none (macOS)."""
    if not sys.platform.startswith("linux"):
        return None
    libtorch = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    for library in (ctypes.CDLL(None), *([ctypes.CDLL(str(libtorch))] if libtorch.exists() else [])):
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


use_cache_folder()
_libgomp = _torch_libgomp()
_STAY = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
binding.add_symbol(
    "metergate_yield",
    ctypes.cast(getattr(ctypes.CDLL(None), "sched_yield", _STAY) if _libgomp else _STAY, ctypes.c_void_p).value,
)


def operation(function: Any) -> Any:
    """Decorator: compiles `function(row_address: int64) -> int64` as an operation of the tape.

    It calls `atomic_next(row)` for tasks until none is left, writes how many there are in all to the row's `TOTAL`
    (every thread the same number) and returns how many it has done.
    """
    return numba.cfunc(types.int64(types.int64), cache=True, nopython=True)(function)


@numba.cfunc(types.void(types.voidptr), cache=True, nopython=True)
def _walk(data: Any) -> None:
    head = address_of(data)
    rows, count = read_int(head, 0), read_int(head, 1)
    for index in range(count):
        row = rows + index * (ROW * 8)
        done = call_pointer(read_int(row, FUNCTION), row)
        atomic_add(row + DONE * 8, done)
        total = read_int(row, TOTAL)
        looks = 0
        while atomic_read(row + DONE * 8) < total:
            looks += 1
            if looks > PATIENCE:
                _yield()


class Tape:
    """Rows in the order of execution. `keep` holds the tensors whose addresses the rows name."""

    def __init__(self, capacity: int = 64) -> None:
        self._rows: NDArray[np.int64] = np.zeros((capacity, ROW), dtype=np.int64)
        self._head: NDArray[np.int64] = np.zeros(2, dtype=np.int64)
        self._count = 0
        self._keep: list[object] = []

    def __len__(self) -> int:
        return self._count

    def add(self, function: Any, header: NDArray[np.int64], arguments: list[int], keep: tuple[object, ...]) -> None:
        """Appends one operation. `arguments` are addresses and sizes; floats travel as their bits (`float_bits`)."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        row = self._rows[self._count]
        row[FUNCTION] = function.address
        row[HEADER] = header.ctypes.data
        row[ARGUMENTS : ARGUMENTS + len(arguments)] = arguments
        self._count += 1
        self._keep.append((header, keep))

    def run(self, threads: int) -> None:
        """Executes all rows with `threads` threads of torch's pool; returns when the last one is done."""
        if not self._count:
            return
        self._rows[: self._count, [TASKS, SLOTS, DONE]] = 0
        self._head[:] = (self._rows.ctypes.data, self._count)
        if threads == 1 or _libgomp is None:
            _walk.ctypes(self._head.ctypes.data)
        else:
            _libgomp.GOMP_parallel(
                ctypes.c_void_p(_walk.address), ctypes.c_void_p(self._head.ctypes.data), ctypes.c_uint(threads), 0
            )


def float_bits(value: float) -> int:
    """The bits of a float32, to travel in an int64 slot."""
    return int(np.float32(value).view(np.int32))


def one_pool() -> bool:
    """True when the kernels run in torch's own thread pool; False when they run on one thread."""
    return _libgomp is not None
