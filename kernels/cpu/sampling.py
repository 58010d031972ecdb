"""Sampling, a row per task, without sorting the vocabulary: only what can lie in the nucleus is gathered and sorted.

What is less likely than (1 - top_p) / vocabulary holds less than 1 - top_p altogether, so the nucleus lies above that floor.
Reference and meaning: ../sampling.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .elementwise import FAST
from .tape import TOTAL, operation
from .vector import (
    F32,
    F32V,
    I64,
    LANES,
    as_pointer,
    atomic_next,
    exp,
    load,
    read_double,
    read_int,
    splat,
    write_int,
)  # fmt: skip

BLOCK = 256
"""Tokens whose weights are summed at once before the walk to the drawn one."""
FLOORS = (1e-3, 1e-6, 0.0)
"""Weights (the best token's is 1) above which the k best are looked for, one after the other."""


@intrinsic
def _row_max(typingctx: Any, x: Any, vectors: Any) -> Any:
    """The largest of 16 * `vectors` floats; NaN if one of them is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, vectors = args
        best, odd = cgutils.alloca_once(builder, F32V), cgutils.alloca_once(builder, F32V)
        builder.store(F32V([float("-inf")] * LANES), best)
        builder.store(F32V([0.0] * LANES), odd)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            value = load(builder, builder.add(x, builder.mul(loop.index, I64(64))), F32V, 4)
            high = builder.load(best)
            builder.store(builder.select(builder.fcmp_ordered(">", value, high), value, high), best)
            nan = builder.fcmp_unordered("uno", value, value)
            builder.store(builder.select(nan, value, builder.load(odd)), odd)
        name = f"llvm.vector.reduce.fmax.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(F32, [F32V]), name)
        top = builder.call(reduce, [builder.load(best)])
        total = F32(0.0)
        for lane in range(LANES):
            total = builder.fadd(total, builder.extract_element(builder.load(odd), ir.IntType(32)(lane)))
        return builder.fadd(top, total)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def _exp_row(typingctx: Any, x: Any, p: Any, vectors: Any, shift: Any, factor: Any) -> Any:
    """p = e^((x - shift) * factor) over 16 * `vectors` floats."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, p, vectors, shift, factor = args
        shifts, factors = splat(builder, shift), splat(builder, factor)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            offset = builder.mul(loop.index, I64(64))
            value = builder.fsub(load(builder, builder.add(x, offset), F32V, 4), shifts)
            weight = exp(builder, builder.fmul(value, factors))
            builder.store(weight, builder.inttoptr(builder.add(p, offset), F32V.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32, types.float32), codegen


@njit(fastmath=FAST)
def _sum_from(p: Any, start: int, stop: int, threshold: float) -> float:
    total = 0.0
    for i in range(start, stop):
        total += np.float64(p[i]) if p[i] >= threshold else 0.0
    return total


@njit
def _gather(p: Any, size: int, threshold: float, found: Any) -> int:
    """Copies the weights at or above `threshold` to `found`; returns how many there are."""
    count = 0
    for i in range(size):
        found[count] = p[i]
        count += 1 if p[i] >= threshold else 0
    return count


@njit
def _threshold(p: Any, found: Any, size: int, top_k: int, top_p: float, min_p: float) -> Any:
    """The smallest weight that stays."""
    floor: Any = np.float32(min_p)
    limit = 0 < top_k < size
    if limit:
        count = 0
        for lowest in FLOORS:
            count = _gather(p, size, max(floor, np.float32(lowest)), found)
            if count >= top_k:
                break
        chosen = found[:count]
        chosen.sort()
        if count > top_k:
            floor = max(floor, chosen[count - top_k])
    if top_p >= 1.0:
        return floor
    total = _sum_from(p, 0, size, floor)
    if not limit:
        unlikely = np.float32((1.0 - top_p) * total / size)
        count = _gather(p, size, max(floor, unlikely), found)
        chosen = found[:count]
        chosen.sort()
    held = 0.0
    at = count
    while at > 0 and held < top_p * total:
        at -= 1
        held += np.float64(found[at])
    return max(floor, found[at])


@njit
def _pick(p: Any, size: int, threshold: float, uniform: float) -> int:
    """The first token at which the running sum of what stays exceeds `uniform` of the total."""
    target = uniform * _sum_from(p, 0, size, threshold)
    before = 0.0
    last = 0
    for start in range(0, size, BLOCK):
        stop = min(size, start + BLOCK)
        here = _sum_from(p, start, stop, threshold)
        if before + here > target:
            running = before
            for i in range(start, stop):
                if p[i] >= threshold and p[i] > 0.0:
                    running += np.float64(p[i])
                    last = i
                    if running > target:
                        return i
        elif here > 0.0:
            for i in range(start, stop):
                if p[i] >= threshold and p[i] > 0.0:
                    last = i
        before += here
    return last


@njit
def _draw(x_at: int, p_at: int, size: int, settings: int) -> int:
    """-1 for a row that holds a NaN or nothing above -inf."""
    x = carray(as_pointer(x_at), (size,), np.float32)
    vectors = size // LANES
    best = _row_max(x_at, vectors)
    for i in range(vectors * LANES, size):
        best = x[i] if x[i] > best or x[i] != x[i] else best
    if not (best > -np.inf and best < np.inf):
        return -1
    temperature = read_double(settings, 0)
    if temperature == 0.0:
        for i in range(size):
            if x[i] == best:
                return i
    padded = (size + LANES - 1) // LANES
    _exp_row(x_at, p_at, padded, best, np.float32(1.0 / temperature))
    p = carray(as_pointer(p_at), (size,), np.float32)
    found = carray(as_pointer(p_at + padded * LANES * 4), (size + 1,), np.float32)
    threshold = _threshold(
        p, found, size, int(read_double(settings, 1)), read_double(settings, 2), read_double(settings, 3)
    )
    return _pick(p, size, threshold, read_double(settings, 4))


@operation
def draw(row: int) -> int:
    """Arguments: logits, their stride (bytes; rows padded to whole vectors), vocabulary, settings (5 doubles per row), tokens
    (int64), scratch, its bytes per thread.
    """
    rows = read_int(read_int(row, 3), 0)
    logits, stride, size, settings = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    tokens, scratch = read_int(row, 8), read_int(row, 9) + atomic_next(row + 8) * read_int(row, 10)
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        write_int(tokens, index, _draw(logits + index * stride, scratch, size, settings + index * 40))
        done += 1
        index = atomic_next(row)
    return done
