"""What attention does to a row of scores: cap, softmax that goes on from what was weighted before, and scaling.

A score that is masked is -inf. Source of the softmax in parts: https://arxiv.org/abs/1805.02867.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector import BF16, F32, F32V, I64, LANES, exp, load, splat, sum_lanes

ZERO, ONE = np.float32(0.0), np.float32(1.0)
MASKED = np.float32(-np.inf)


@intrinsic(prefer_literal=True)
def softmax(typingctx: Any, kind: Any, row: Any, vectors: Any, mark: Any) -> Any:
    """row <- e^(row - m) over 16 * `vectors` elements (masked ones are -inf, and become 0), where m is the largest of them and of
    what went before. `mark` (two floats) has the largest score and the sum of weights: before, then with this row. Returns
    by what sums weighted before are to be multiplied. With the `kind` (a literal) pairs the row becomes bfloat16, from the
    same place on.
    """
    if not isinstance(kind, types.StringLiteral):
        return None
    narrow = ir.VectorType(BF16, LANES) if kind.literal_value == "pairs" else None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, row, vectors, mark = args
        before = load(builder, mark, F32, 4)
        weight = builder.inttoptr(builder.add(mark, I64(4)), F32.as_pointer())
        best, total = cgutils.alloca_once(builder, F32V), cgutils.alloca_once(builder, F32V)
        builder.store(splat(builder, before), best)
        builder.store(F32V([0.0] * LANES), total)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            x = load(builder, builder.add(row, builder.mul(loop.index, I64(64))), F32V, 4)
            high = builder.load(best)
            builder.store(builder.select(builder.fcmp_ordered(">", x, high), x, high), best)
        name = f"llvm.vector.reduce.fmax.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(F32, [F32V]), name)
        high = builder.call(reduce, [builder.load(best)])
        shift = splat(builder, high)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            at = builder.add(row, builder.mul(loop.index, I64(64)))
            value = exp(builder, builder.fsub(load(builder, at, F32V, 4), shift))
            if narrow is None:
                builder.store(value, builder.inttoptr(at, F32V.as_pointer()), align=4)
            else:
                half = builder.add(row, builder.mul(loop.index, I64(32)))
                builder.store(builder.fptrunc(value, narrow), builder.inttoptr(half, narrow.as_pointer()), align=2)
            builder.store(builder.fadd(builder.load(total), value), total)
        shrunk = builder.extract_element(exp(builder, splat(builder, builder.fsub(before, high), 1)), I64(0))
        own = sum_lanes(builder, builder.load(total))
        builder.store(high, builder.inttoptr(mark, F32.as_pointer()), align=4)
        builder.store(builder.fadd(builder.fmul(builder.load(weight, align=4), shrunk), own), weight, align=4)
        return shrunk

    return types.float32(kind, *[types.int64] * 3), codegen


@intrinsic
def scaled_copy(typingctx: Any, source: Any, target: Any, vectors: Any, factor: Any) -> Any:
    """target = factor * source over 16 * `vectors` floats."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target, vectors, factor = args
        scale = splat(builder, factor)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            offset = builder.mul(loop.index, I64(64))
            value = builder.fmul(load(builder, builder.add(source, offset), F32V, 4), scale)
            builder.store(value, builder.inttoptr(builder.add(target, offset), F32V.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32), codegen


@intrinsic
def cap(typingctx: Any, row: Any, vectors: Any, softcap: Any) -> Any:
    """s <- c tanh(s / c) over 16 * `vectors` floats, with tanh x = 1 - 2 / (1 + e^(2 x))."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, vectors, softcap = args
        one, cap = F32V([1.0] * LANES), splat(builder, softcap)
        double = splat(builder, builder.fdiv(F32(2.0), softcap))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            at = builder.add(row, builder.mul(loop.index, I64(64)))
            grown = builder.fadd(one, exp(builder, builder.fmul(load(builder, at, F32V, 4), double)))
            tanh = builder.fsub(one, builder.fdiv(F32V([2.0] * LANES), grown))
            builder.store(builder.fmul(cap, tanh), builder.inttoptr(at, F32V.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen
