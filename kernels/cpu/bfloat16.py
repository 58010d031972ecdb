"""y = x Wᵀ (+ y) for bfloat16 weights and activations, on processors that multiply pairs of them (AVX-512 BF16).

Weights lie in panels of `WIDE` outputs; within a panel, for each pair of inputs, the pair's two weights for one output after the
other: one instruction multiplies a pair of a row's inputs with the pairs of 16 outputs and adds both products to 16 float32 sums
(VDPBF16PS: pairs in no order that is promised, denormals are zero). A tile is up to eight rows x 32 outputs, all in registers;
fewer rows keep several sums per output, because the adds' latency has to overlap.

Importing this module compiles instructions that other processors lack: ask `pairs_work` first (pairs.py).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .attention import attend
from .pairs import WIDE
from .shared_prefix import attend_prefix
from .tape import TOTAL, operation
from .vector import (
    BF16V,
    F32V,
    I32,
    I64,
    LANES,
    atomic_next,
    dot_pairs,
    load,
    prefetch_line,
    read_int,
    splat,
    write_int,
)

PAIR_BYTES = WIDE * 4
ROWS_AT_ONCE = 128
"""Rows that pass over a task's panels before the next ones do: their inputs stay in the second-level cache."""
SETS = {1: 4, 2: 2}
"""Independent sums per output of a tile with few rows."""
AHEAD = 2048
"""Bytes that a single row's weights are asked for before they are needed."""


@intrinsic(prefer_literal=True)
def _tile(
    typingctx: Any, rows: Any, x: Any, x_stride: Any, panel: Any, pairs: Any, y: Any, y_stride: Any, add: Any
) -> Any:
    """`rows` (a literal) rows of x times one panel; addresses and strides in bytes; `pairs` is a multiple of 4."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value
    sets = SETS.get(count, 1)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, x, x_stride, panel, pairs, y, y_stride, add = args
        zero = ir.Constant(F32V, [0.0] * LANES)
        inputs = [builder.add(x, builder.mul(x_stride, I64(row))) for row in range(count)]
        sums = [[[cgutils.alloca_once(builder, F32V) for _ in range(2)] for _ in range(sets)] for _ in range(count)]
        for slot in (slot for row in sums for own in row for slot in own):
            builder.store(zero, slot)
        with cgutils.for_range(builder, builder.udiv(pairs, I64(4)), intp=I64) as loop:
            for step in range(4):
                at = builder.add(panel, builder.mul(loop.index, I64(4 * PAIR_BYTES)))
                at = builder.add(at, I64(step * PAIR_BYTES))
                if count <= 2:
                    for half in range(2):
                        prefetch_line(builder, builder.add(at, I64(AHEAD + 64 * half)))
                weights = [load(builder, builder.add(at, I64(64 * half)), BF16V, 64) for half in range(2)]
                offset = builder.add(builder.mul(loop.index, I64(16)), I64(4 * step))
                for row, own in zip(inputs, sums, strict=True):
                    pair = splat(builder, load(builder, builder.add(row, offset), I32, 4))
                    pair = builder.bitcast(pair, BF16V)
                    for slot, weight in zip(own[step % sets], weights, strict=True):
                        builder.store(dot_pairs(builder, builder.load(slot), pair, weight), slot)
        for row, own in enumerate(sums):
            target = builder.add(y, builder.mul(y_stride, I64(row)))
            for half in range(2):
                total = builder.load(own[0][half])
                for other in own[1:]:
                    total = builder.fadd(total, builder.load(other[half]))
                place = builder.inttoptr(builder.add(target, I64(64 * half)), F32V.as_pointer())
                with builder.if_else(builder.icmp_signed("!=", add, I64(0))) as (then, otherwise):
                    with then:
                        builder.store(builder.fadd(total, builder.load(place, align=4)), place, align=4)
                    with otherwise:
                        builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(rows, *[types.int64] * 7), codegen


@njit(inline="always")
def _rows(x: int, x_stride: int, panel: int, pairs: int, y: int, y_stride: int, rows: int, add: int) -> None:
    row = 0
    while row + 8 <= rows:
        _tile(8, x + row * x_stride, x_stride, panel, pairs, y + row * y_stride, y_stride, add)
        row += 8
    if row + 4 <= rows:
        _tile(4, x + row * x_stride, x_stride, panel, pairs, y + row * y_stride, y_stride, add)
        row += 4
    if row + 2 <= rows:
        _tile(2, x + row * x_stride, x_stride, panel, pairs, y + row * y_stride, y_stride, add)
        row += 2
    if row < rows:
        _tile(1, x + row * x_stride, x_stride, panel, pairs, y + row * y_stride, y_stride, add)


@operation
def linear_pairs(row: int) -> int:
    """Arguments: x (bfloat16), its stride (bytes), weights, pairs of inputs, panels, y (float32), its stride, add (0 or 1),
    panels per task.
    """
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, weights, pairs = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    panels, y, y_stride, add = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    per_task = read_int(row, 12)
    write_int(row, TOTAL, (panels + per_task - 1) // per_task)
    done = 0
    first = atomic_next(row) * per_task
    while first < panels:
        for start in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - start)
            for number in range(first, min(panels, first + per_task)):
                out = y + start * y_stride + number * (WIDE * 4)
                panel = weights + number * pairs * PAIR_BYTES
                _rows(x + start * x_stride, x_stride, panel, pairs, out, y_stride, count, add)
        done += 1
        first = atomic_next(row) * per_task
    return done


@operation
def attend_pairs(row: int) -> int:
    """attention.py's, over a cache in bfloat16."""
    return attend("pairs", 2, row)


@operation
def attend_prefix_pairs(row: int) -> int:
    """shared_prefix.py's, over a cache in bfloat16."""
    return attend_prefix("pairs", 2, row)
