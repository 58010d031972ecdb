"""y = x Wᵀ (+ y) for weights in 8 and 4 bits and activations in 16, by the processor's dot products of bytes (AVX-512 VNNI).

A row of x is rounded per group of 32 inputs, x ≈ s q with s = max |x| / 32512 and q = 256 h + l in two signed bytes: sum u q =
256 sum u h + sum u l. Sums within a group are whole numbers and exact, so that a row's result does not depend on how many rows
there are. One byte alone, as llama.cpp has it, moves SmolLM2's logits by 0.3, as much as parts its better answers from its worse
(docs/decisions/0018-rounded-activations.md). With u the weights' stored unsigned bytes or
nibbles, d their scale and m their minimum:

    q8_0: d s (sum u q - 128 sum q)      q4_0: d s (sum u q - 8 sum q)      q4_1: d s sum u q + m s sum q

Layouts: int8_weights.py. Importing this module compiles instructions that other processors lack: ask `int8_works` first.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .int8_weights import GROUP_BYTES, ROW_EXTRA
from .tape import TOTAL, operation
from .vector import (
    F32,
    F32V,
    I8,
    I32,
    I32V,
    I64,
    LANES,
    atomic_next,
    fma,
    load,
    load_floats,
    read_int,
    splat,
    write_int,
)

BYTES = ir.VectorType(I8, 4 * LANES)
QUADS = 8
"""Fours of inputs in a group."""
ROWS_AT_ONCE = 128
STEPS = 127.0 * 256
"""From zero to a group's largest value."""
SCALE, SCALED_SUM, MINUS_128, MINUS_8 = 0, 4, 8, 12
"""What lies beside a group of a row, by its byte: s, s sum q, -128 sum q, -8 sum q."""


def _dot(builder: Any, total: Any, weights: Any, inputs: Any) -> Any:
    kind = ir.FunctionType(I32V, [I32V, BYTES, BYTES])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(function, [total, weights, inputs])


def _quads(builder: Any, storage: str, group: Any) -> Any:
    """(number of the four inputs, unsigned weights of the 16 first and of the 16 last outputs), one after the other."""
    if storage == "q8_0":
        for quad in range(QUADS):
            at = [builder.add(group, I64(64 + 128 * quad + 64 * half)) for half in range(2)]
            yield quad, [load(builder, each, BYTES, 64) for each in at]
        return
    header = 128 if storage == "q4_1" else 64
    nibble, four = ir.Constant(BYTES, [15] * BYTES.count), ir.Constant(BYTES, [4] * BYTES.count)
    for quad in range(QUADS // 2):
        at = [builder.add(group, I64(header + 128 * quad + 64 * half)) for half in range(2)]
        raw = [load(builder, each, BYTES, 64) for each in at]
        yield quad, [builder.and_(each, nibble) for each in raw]
        yield quad + QUADS // 2, [builder.lshr(each, four) for each in raw]


def _whole_sums(builder: Any, storage: str, group: Any, inputs: list[Any], extras: list[Any]) -> list[list[Any]]:
    """One group of weights times one group of each row: for each row the whole numbers of the first and the last 16 outputs."""
    start = {"q8_0": MINUS_128, "q4_0": MINUS_8}.get(storage)
    nothing, byte = ir.Constant(I32V, [0] * LANES), ir.Constant(I32V, [8] * LANES)
    sums = []
    for extra in extras:
        first = nothing
        if start is not None:
            first = splat(builder, load(builder, builder.add(extra, I64(start)), I32, 4))
        sums.append([[nothing, nothing], [first, first]])
    for quad, weights in _quads(builder, storage, group):
        for row, own in zip(inputs, sums, strict=True):
            for byte_number, halves in enumerate(own):
                four = splat(builder, load(builder, builder.add(row, I64(32 * byte_number + 4 * quad)), I32, 4))
                four = builder.bitcast(four, BYTES)
                for half in range(2):
                    halves[half] = _dot(builder, halves[half], weights[half], four)
    return [[builder.add(builder.shl(high, byte), low) for high, low in zip(*own, strict=True)] for own in sums]


def _add_group(
    builder: Any, storage: str, group: Any, inputs: list[Any], extras: list[Any], totals: list[list[Any]]
) -> None:
    """One group of weights times one group of each row, added to the rows' float sums."""
    sums = _whole_sums(builder, storage, group, inputs, extras)
    scales = [load_floats(builder, builder.add(group, I64(32 * half)), "f16") for half in range(2)]
    for extra, own, slots in zip(extras, sums, totals, strict=True):
        factor = splat(builder, load(builder, builder.add(extra, I64(SCALE)), F32, 4))
        for half in range(2):
            value = builder.fmul(builder.sitofp(own[half], F32V), factor)
            total = fma(builder, value, scales[half], builder.load(slots[half]))
            if storage == "q4_1":
                minima = load_floats(builder, builder.add(group, I64(64 + 32 * half)), "f16")
                offset = splat(builder, load(builder, builder.add(extra, I64(SCALED_SUM)), F32, 4))
                total = fma(builder, offset, minima, total)
            builder.store(total, slots[half])


@intrinsic(prefer_literal=True)
def _tile(
    typingctx: Any,
    kind: Any,
    rows: Any,
    x: Any,
    x_stride: Any,
    panel: Any,
    groups: Any,
    y: Any,
    y_stride: Any,
    add: Any,
) -> Any:
    """`rows` rows of rounded x times one panel of 32 outputs; `kind` and `rows` are literals."""
    if not isinstance(kind, types.StringLiteral) or not isinstance(rows, types.IntegerLiteral):
        return None
    storage, count = kind.literal_value, rows.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, x, x_stride, panel, groups, y, y_stride, add = args
        rows_x = [builder.add(x, builder.mul(x_stride, I64(row))) for row in range(count)]
        after = builder.mul(groups, I64(64))
        totals = [[cgutils.alloca_once(builder, F32V) for _ in range(2)] for _ in range(count)]
        for slot in (slot for own in totals for slot in own):
            builder.store(F32V([0.0] * LANES), slot)
        with cgutils.for_range(builder, groups, intp=I64) as loop:
            group = builder.add(panel, builder.mul(loop.index, I64(GROUP_BYTES[storage])))
            inputs = [builder.add(row, builder.mul(loop.index, I64(64))) for row in rows_x]
            extra = builder.add(after, builder.mul(loop.index, I64(ROW_EXTRA)))
            _add_group(builder, storage, group, inputs, [builder.add(row, extra) for row in rows_x], totals)
        for row, own in enumerate(totals):
            for half, slot in enumerate(own):
                at = builder.add(builder.add(y, builder.mul(y_stride, I64(row))), I64(64 * half))
                place, total = builder.inttoptr(at, F32V.as_pointer()), builder.load(slot)
                with builder.if_else(builder.icmp_signed("!=", add, I64(0))) as (then, otherwise):
                    with then:
                        builder.store(builder.fadd(total, builder.load(place, align=4)), place, align=4)
                    with otherwise:
                        builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(kind, rows, *[types.int64] * 7), codegen


@intrinsic
def _round_row(typingctx: Any, x: Any, groups: Any, target: Any) -> Any:
    """x (float32) rounded to pairs of bytes, and what lies beside its groups, to `target`. A NaN makes its group's scale NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, groups, target = args
        bytes_of_half = ir.VectorType(I8, LANES)

        def call(name: str, kind: Any, *values: Any) -> Any:
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(kind, [value.type for value in values]), name
            )
            return builder.call(function, list(values))

        zero = F32V([0.0] * LANES)
        after = builder.add(target, builder.mul(groups, I64(64)))
        with cgutils.for_range(builder, groups, intp=I64) as loop:
            at = builder.add(x, builder.mul(loop.index, I64(128)))
            values = [load(builder, builder.add(at, I64(64 * half)), F32V, 4) for half in range(2)]
            sizes = [call("llvm.fabs.v16f32", F32V, value) for value in values]
            largest = call(
                "llvm.vector.reduce.fmaximum.v16f32", F32, call("llvm.maximum.v16f32", F32V, sizes[0], sizes[1])
            )
            scale = builder.fmul(largest, F32(1 / STEPS))
            fine = builder.fcmp_ordered(">", largest, F32(1e-30))
            inverse = builder.select(fine, builder.fdiv(F32(STEPS), largest), F32(0.0))
            total = None
            for half, value in enumerate(values):
                near = call("llvm.rint.v16f32", F32V, builder.fmul(value, splat(builder, inverse)))
                near = builder.select(builder.fcmp_ordered("ord", near, near), near, zero)
                whole = builder.fptosi(near, I32V)
                place = builder.add(builder.add(target, builder.mul(loop.index, I64(64))), I64(16 * half))
                high = builder.ashr(
                    builder.add(whole, ir.Constant(I32V, [128] * LANES)), ir.Constant(I32V, [8] * LANES)
                )
                for part, numbers in enumerate((high, whole)):
                    at_part = builder.inttoptr(builder.add(place, I64(32 * part)), bytes_of_half.as_pointer())
                    builder.store(builder.trunc(numbers, bytes_of_half), at_part, align=1)
                total = whole if total is None else builder.add(total, whole)
            count = call("llvm.vector.reduce.add.v16i32", I32, total)
            extra = builder.add(after, builder.mul(loop.index, I64(ROW_EXTRA)))
            fields = {
                SCALE: scale,
                SCALED_SUM: builder.fmul(scale, builder.sitofp(count, F32)),
                MINUS_128: builder.mul(count, I32(-128)),
                MINUS_8: builder.mul(count, I32(-8)),
            }
            for offset, value in fields.items():
                place = builder.inttoptr(builder.add(extra, I64(offset)), value.type.as_pointer())
                builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@operation
def round_rows(row: int) -> int:
    """Arguments: x (float32), its stride (bytes), y, its stride, groups of 32 inputs."""
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, y, y_stride = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        _round_row(x + index * x_stride, read_int(row, 8), y + index * y_stride)
        done += 1
        index = atomic_next(row)
    return done


@njit(inline="always")
def _rows(
    kind: str, x: int, x_stride: int, panel: int, groups: int, y: int, y_stride: int, rows: int, add: int
) -> None:
    row = 0
    while row + 4 <= rows:
        _tile(kind, 4, x + row * x_stride, x_stride, panel, groups, y + row * y_stride, y_stride, add)
        row += 4
    if row + 2 <= rows:
        _tile(kind, 2, x + row * x_stride, x_stride, panel, groups, y + row * y_stride, y_stride, add)
        row += 2
    if row < rows:
        _tile(kind, 1, x + row * x_stride, x_stride, panel, groups, y + row * y_stride, y_stride, add)


@njit(inline="always")
def _tasks(kind: str, group_bytes: int, row: int) -> int:
    """Arguments: rounded x, its stride (bytes), weights, groups, panels, y, its stride, add (0 or 1), panels per task."""
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, weights, groups = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    panels, y, y_stride, add = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    per_task = read_int(row, 12)
    write_int(row, TOTAL, (panels + per_task - 1) // per_task)
    done = 0
    first = atomic_next(row) * per_task
    while first < panels:
        for start in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - start)
            for number in range(first, min(panels, first + per_task)):
                panel, out = weights + number * groups * group_bytes, y + start * y_stride + number * 128
                _rows(kind, x + start * x_stride, x_stride, panel, groups, out, y_stride, count, add)
        done += 1
        first = atomic_next(row) * per_task
    return done


@operation
def linear_q8_0(row: int) -> int:
    return _tasks("q8_0", 1088, row)


@operation
def linear_q4_1(row: int) -> int:
    return _tasks("q4_1", 640, row)


@operation
def linear_q4_0(row: int) -> int:
    return _tasks("q4_0", 576, row)
