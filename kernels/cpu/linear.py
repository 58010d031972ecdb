"""y = x Wᵀ (+ y) for weights at their own bits, float32 activations and float32 sums.

Weights lie in panels of `LANES` outputs. Within a panel, for each group of 32 inputs: the scales of the 16 outputs (quantised
storages only), then the weights with the outputs innermost, so that one vector holds one input's weight for 16 outputs:

| storage | bytes per group of 32 x 16 weights | value |
| --- | --- | --- |
| f32, bf16, f16 | 2048, 1024, 1024 | itself |
| q8_0 | 32 scales + 512 | d q |
| q4_1 | 32 scales + 32 minima + 256 (low nibble: input k, high: k + 16) | d q + m |
| q4_0 | 32 scales + 256 (same order) | d (q - 8) |

The micro-kernel keeps a tile of rows x 16 outputs of sums in registers. Up to five rows read the weights as they are stored and
apply a group's scale to its sum; for more, a panel is first widened to float32 in a scratch that stays in cache, and tiles of six
rows run over it. Both are the dequantised weights' arithmetic in float32; only the order of the sums differs.
Formats: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .tape import TOTAL, operation
from .vector import (
    F32,
    F32V,
    I8V,
    I32V,
    I64,
    LANES,
    atomic_next,
    fma,
    load,
    load_floats,
    read_int,
    splat,
    sum_lanes,
    write_int,
)

GROUP = 32
UNROLL = 4
WIDEN_GROUPS = 32
SCRATCH_BYTES = WIDEN_GROUPS * 2048
"""Per thread: 1,024 inputs x 16 outputs in float32, which the second-level cache holds."""
SETS = {1: 4, 2: 2, 3: 2}
"""Independent sums per row of a tile with few rows."""
GROUP_BYTES = {"f32": 2048, "bf16": 1024, "f16": 1024, "q8_0": 32 + 512, "q4_1": 64 + 256, "q4_0": 32 + 256}


def _constant(kind: Any, value: float) -> Any:
    return ir.Constant(kind, [value] * kind.count)


class _Weights:
    """Emits the widening of one group's weights. Quantised storages give the stored integers; scales come after the sums."""

    def __init__(self, builder: Any, storage: str, group: Any) -> None:
        self.builder, self.storage, self.group = builder, storage, group

    def pair(self, k: Any) -> Iterator[tuple[Any, Any]]:
        """(input index within the group, weights of the 16 outputs) for inputs k and k + 16, where k is 0..15."""
        builder = self.builder
        high = builder.add(k, I64(16))
        if self.storage in ("q4_1", "q4_0"):
            header = 64 if self.storage == "q4_1" else 32
            raw = load(builder, builder.add(self.group, builder.add(I64(header), builder.mul(k, I64(16)))), I8V, 16)
            wide = builder.zext(raw, I32V)
            yield k, builder.sitofp(builder.and_(wide, ir.Constant(I32V, [15] * LANES)), F32V)
            yield high, builder.sitofp(builder.lshr(wide, ir.Constant(I32V, [4] * LANES)), F32V)
        else:
            yield k, self.single(k)
            yield high, self.single(high)

    def single(self, k: Any) -> Any:
        builder = self.builder
        if self.storage == "q8_0":
            raw = load(builder, builder.add(self.group, builder.add(I64(32), builder.mul(k, I64(16)))), I8V, 16)
            return builder.sitofp(builder.sext(raw, I32V), F32V)
        stride = GROUP_BYTES[self.storage] // GROUP
        return load_floats(builder, builder.add(self.group, builder.mul(k, I64(stride))), self.storage)

    def value(self, stored: Any) -> Any:
        """The float32 weights behind what `pair` gave."""
        builder = self.builder
        if not self.storage.startswith("q"):
            return stored
        scale = load_floats(builder, self.group, "f16")
        if self.storage == "q8_0":
            return builder.fmul(stored, scale)
        if self.storage == "q4_1":
            return fma(builder, stored, scale, load_floats(builder, builder.add(self.group, I64(32)), "f16"))
        return builder.fmul(builder.fadd(stored, _constant(F32V, -8.0)), scale)

    def fold(self, total: Any, part: Any, x: Any) -> Any:
        """The running total plus this group's sum `part` over stored integers; `x` is the address of the group's inputs."""
        builder = self.builder
        scale = load_floats(builder, self.group, "f16")
        total = fma(builder, part, scale, total)
        if self.storage == "q8_0":
            return total
        if self.storage == "q4_1":
            offset = load_floats(builder, builder.add(self.group, I64(32)), "f16")
        else:
            offset = builder.fmul(scale, _constant(F32V, -8.0))
        both = builder.fadd(load(builder, x, F32V, 4), load(builder, builder.add(x, I64(64)), F32V, 4))
        return fma(builder, splat(builder, sum_lanes(builder, both)), offset, total)


def _sum_group(builder: Any, weights: _Weights, inputs: list[Any], sums: list[list[Any]]) -> None:
    """Adds 32 inputs x 16 outputs to `sums[row]`; a row with several sums takes them in turn (the adds' latency overlaps)."""
    sets = len(sums[0])
    with cgutils.for_range(builder, I64(16 // UNROLL), intp=I64) as inner:
        first = builder.mul(inner.index, I64(UNROLL))
        turn = 0
        for step in range(UNROLL):
            for k, vector in weights.pair(builder.add(first, I64(step))):
                offset = builder.mul(k, I64(4))
                for x, own in zip(inputs, sums, strict=True):
                    value = splat(builder, load(builder, builder.add(x, offset), F32, 4))
                    slot = own[turn % sets]
                    builder.store(fma(builder, value, vector, builder.load(slot)), slot)
                turn += 1


def _gathered(builder: Any, slots: list[Any]) -> Any:
    total = builder.load(slots[0])
    for slot in slots[1:]:
        total = builder.fadd(total, builder.load(slot))
    return total


@intrinsic(prefer_literal=True)
def _tile(
    typingctx: Any,
    storage: Any,
    rows: Any,
    x: Any,
    x_stride: Any,
    panel: Any,
    groups: Any,
    y: Any,
    y_stride: Any,
    add: Any,
) -> Any:
    """`rows` rows of x times one panel. `storage` and `rows` are literals; addresses and strides in bytes."""
    if not isinstance(storage, types.StringLiteral) or not isinstance(rows, types.IntegerLiteral):
        return None
    kind, count = storage.literal_value, rows.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, x, x_stride, panel, groups, y, y_stride, add = args
        quantised = kind.startswith("q")
        sets = SETS.get(count, 1)
        zero = _constant(F32V, 0.0)
        sums = [[cgutils.alloca_once(builder, F32V) for _ in range(sets)] for _ in range(count)]
        totals = [cgutils.alloca_once(builder, F32V) for _ in range(count)]
        rows_x = [builder.add(x, builder.mul(x_stride, I64(row))) for row in range(count)]
        for slot in [*totals, *(slot for own in sums for slot in own)]:
            builder.store(zero, slot)
        with cgutils.for_range(builder, groups, intp=I64) as outer:
            weights = _Weights(builder, kind, builder.add(panel, builder.mul(outer.index, I64(GROUP_BYTES[kind]))))
            base = builder.mul(outer.index, I64(GROUP * 4))
            inputs = [builder.add(row, base) for row in rows_x]
            _sum_group(builder, weights, inputs, sums)
            if quantised:
                for total, own, address in zip(totals, sums, inputs, strict=True):
                    builder.store(weights.fold(builder.load(total), _gathered(builder, own), address), total)
                    for slot in own:
                        builder.store(zero, slot)
        for row in range(count):
            target = builder.inttoptr(builder.add(y, builder.mul(y_stride, I64(row))), F32V.as_pointer())
            total = builder.load(totals[row]) if quantised else _gathered(builder, sums[row])
            with builder.if_else(builder.icmp_signed("!=", add, I64(0))) as (then, otherwise):
                with then:
                    builder.store(builder.fadd(total, builder.load(target, align=4)), target, align=4)
                with otherwise:
                    builder.store(total, target, align=4)
        return context.get_dummy_value()

    return types.void(storage, rows, *[types.int64] * 7), codegen


@intrinsic(prefer_literal=True)
def _widen(typingctx: Any, storage: Any, panel: Any, groups: Any, target: Any) -> Any:
    """Writes `groups` groups of a panel as float32 (the layout of storage f32) to `target`."""
    if not isinstance(storage, types.StringLiteral):
        return None
    kind = storage.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, panel, groups, target = args
        with cgutils.for_range(builder, groups, intp=I64) as outer:
            weights = _Weights(builder, kind, builder.add(panel, builder.mul(outer.index, I64(GROUP_BYTES[kind]))))
            base = builder.add(target, builder.mul(outer.index, I64(GROUP_BYTES["f32"])))
            with cgutils.for_range(builder, I64(16 // UNROLL), intp=I64) as inner:
                first = builder.mul(inner.index, I64(UNROLL))
                for step in range(UNROLL):
                    for k, vector in weights.pair(builder.add(first, I64(step))):
                        at = builder.inttoptr(builder.add(base, builder.mul(k, I64(64))), F32V.as_pointer())
                        builder.store(weights.value(vector), at, align=4)
        return context.get_dummy_value()

    return types.void(storage, types.int64, types.int64, types.int64), codegen


@njit(inline="always")
def _few_rows(
    storage: str, x: int, x_stride: int, panel: int, groups: int, y: int, y_stride: int, rows: int, add: int
) -> None:
    """Up to 5 rows in one tile: what is left over, and whole batches of few sequences."""
    if rows == 1:
        _tile(storage, 1, x, x_stride, panel, groups, y, y_stride, add)
    elif rows == 2:
        _tile(storage, 2, x, x_stride, panel, groups, y, y_stride, add)
    elif rows == 3:
        _tile(storage, 3, x, x_stride, panel, groups, y, y_stride, add)
    elif rows == 4:
        _tile(storage, 4, x, x_stride, panel, groups, y, y_stride, add)
    elif rows == 5:
        _tile(storage, 5, x, x_stride, panel, groups, y, y_stride, add)


@njit
def _many_rows_f32(x: int, x_stride: int, panel: int, groups: int, y: int, y_stride: int, rows: int, add: int) -> None:
    row = 0
    while row + 6 <= rows:
        _tile("f32", 6, x + row * x_stride, x_stride, panel, groups, y + row * y_stride, y_stride, add)
        row += 6
    _few_rows("f32", x + row * x_stride, x_stride, panel, groups, y + row * y_stride, y_stride, rows - row, add)


@njit(inline="always")
def _tasks(storage: str, group_bytes: int, row: int) -> int:
    """Arguments: x, its stride, weights, groups, panels, y, its stride, add (0 or 1), panels per task, scratch."""
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, weights, groups = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    panels, y, y_stride, add = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    per_task = read_int(row, 12)
    scratch = read_int(row, 13) + atomic_next(row + 8) * SCRATCH_BYTES
    write_int(row, TOTAL, (panels + per_task - 1) // per_task)
    done = 0
    first = atomic_next(row) * per_task
    while first < panels:
        for number in range(first, min(panels, first + per_task)):
            panel = weights + number * groups * group_bytes
            out = y + number * 64
            if rows <= 5:
                _few_rows(storage, x, x_stride, panel, groups, out, y_stride, rows, add)
            else:
                for group in range(0, groups, WIDEN_GROUPS):
                    count = min(WIDEN_GROUPS, groups - group)
                    _widen(storage, panel + group * group_bytes, count, scratch)
                    more = add if group == 0 else 1
                    _many_rows_f32(x + group * 128, x_stride, scratch, count, out, y_stride, rows, more)
        done += 1
        first = atomic_next(row) * per_task
    return done


@operation
def linear_f32(row: int) -> int:
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, weights, groups = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    panels, y, y_stride, add = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    per_task = read_int(row, 12)
    write_int(row, TOTAL, (panels + per_task - 1) // per_task)
    done = 0
    first = atomic_next(row) * per_task
    while first < panels:
        for number in range(first, min(panels, first + per_task)):
            panel = weights + number * groups * 2048
            _many_rows_f32(x, x_stride, panel, groups, y + number * 64, y_stride, rows, add)
        done += 1
        first = atomic_next(row) * per_task
    return done


@operation
def linear_bf16(row: int) -> int:
    return _tasks("bf16", 1024, row)


@operation
def linear_f16(row: int) -> int:
    return _tasks("f16", 1024, row)


@operation
def linear_q8_0(row: int) -> int:
    return _tasks("q8_0", 544, row)


@operation
def linear_q4_1(row: int) -> int:
    return _tasks("q4_1", 320, row)


@operation
def linear_q4_0(row: int) -> int:
    return _tasks("q4_0", 288, row)
