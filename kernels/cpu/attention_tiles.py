"""The inner loops of attention over one block of 16 tokens, for up to six rows (queries) at once, all sums in registers.

| kind | cache | products |
| --- | --- | --- |
| f32 | float32 | float32 |
| bf16 | bfloat16, widened | float32 |
| pairs | bfloat16 | of pairs of bfloat16, queries and weights rounded to it; sums float32 (AVX-512 BF16) |

One step takes two numbers of all 16 keys, or two tokens' values of 16 numbers. Layout of the caches: cache.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector import BF16V, F32, F32V, I32, I32V, I64, LANES, dot_pairs, fma, load, splat

CHAINS = {1: 4, 2: 4, 3: 4, 4: 2, 5: 2, 6: 2}
"""Sums per row that are added up at the end: an addition's latency overlaps with the next ones'."""
STEPS = 4
"""Steps of the unrolled loops."""


def _halves(builder: Any, address: Any) -> list[Any]:
    """16 pairs of bfloat16 as the floats of their first and of their second halves."""
    raw = load(builder, address, I32V, 4)
    low = builder.shl(raw, ir.Constant(I32V, [16] * LANES))
    high = builder.and_(raw, ir.Constant(I32V, [-65536] * LANES))
    return [builder.bitcast(low, F32V), builder.bitcast(high, F32V)]


def add_step(builder: Any, kind: str, vectors: list[Any], factors: Any, slots: list[Any], step: int) -> None:
    """Adds a row's two factors (at address `factors`) times `vectors` to that row's sums, each in its turn."""
    if kind == "pairs":
        pair = builder.bitcast(splat(builder, load(builder, factors, I32, 4)), BF16V)
        slot = slots[step % len(slots)]
        builder.store(dot_pairs(builder, builder.load(slot), pair, vectors[0]), slot)
        return
    for number, vector in enumerate(vectors):
        factor = splat(builder, load(builder, builder.add(factors, I64(4 * number)), F32, 4))
        slot = slots[(2 * step + number) % len(slots)]
        builder.store(fma(builder, factor, vector, builder.load(slot)), slot)


def _slots(builder: Any, rows: int) -> list[list[Any]]:
    return [[cgutils.alloca_once(builder, F32V) for _ in range(CHAINS[rows])] for _ in range(rows)]


def _clear(builder: Any, sums: list[list[Any]]) -> None:
    for slot in (slot for own in sums for slot in own):
        builder.store(F32V([0.0] * LANES), slot)


def _total(builder: Any, slots: list[Any]) -> Any:
    total = builder.load(slots[0])
    for slot in slots[1:]:
        total = builder.fadd(total, builder.load(slot))
    return total


def key_vectors(builder: Any, storage: str, keys: Any, index: Any) -> list[Any]:
    """Two numbers (the pair `index`) of all 16 keys of the block at `keys`."""
    at = builder.add(keys, builder.mul(index, I64(128 if storage == "f32" else 64)))
    if storage == "f32":
        return [load(builder, builder.add(at, I64(64 * half)), F32V, 4) for half in range(2)]
    return _halves(builder, at) if storage == "bf16" else [load(builder, at, BF16V, 4)]


@intrinsic(prefer_literal=True)
def score_tile(
    typingctx: Any, kind: Any, rows: Any, q: Any, q_stride: Any, keys: Any, pairs: Any, s: Any, s_stride: Any
) -> Any:
    """s[r][0..15] = q[r] . keys of one block of heads of 2 * `pairs` numbers. `kind` and `rows` are literals."""
    if not isinstance(kind, types.StringLiteral) or not isinstance(rows, types.IntegerLiteral):
        return None
    storage, count = kind.literal_value, rows.literal_value
    query_bytes = 4 if storage == "pairs" else 8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, q, q_stride, keys, pairs, s, s_stride = args
        queries = [builder.add(q, builder.mul(q_stride, I64(row))) for row in range(count)]
        sums = _slots(builder, count)
        _clear(builder, sums)
        with cgutils.for_range(builder, builder.udiv(pairs, I64(STEPS)), intp=I64) as loop:
            for step in range(STEPS):
                index = builder.add(builder.mul(loop.index, I64(STEPS)), I64(step))
                vectors = key_vectors(builder, storage, keys, index)
                for query, own in zip(queries, sums, strict=True):
                    factors = builder.add(query, builder.mul(index, I64(query_bytes)))
                    add_step(builder, storage, vectors, factors, own, step)
        for row, own in enumerate(sums):
            target = builder.inttoptr(builder.add(s, builder.mul(s_stride, I64(row))), F32V.as_pointer())
            builder.store(_total(builder, own), target, align=4)
        return context.get_dummy_value()

    return types.void(kind, rows, *[types.int64] * 6), codegen


def value_vectors(builder: Any, storage: str, at: Any, row_bytes: Any, *, first_only: bool) -> list[Any]:
    """The 16 numbers at `at` of two tokens, or of the first of them, where the second is nobody's."""
    if storage == "f32":
        first = load(builder, at, F32V, 4)
        return [first] if first_only else [first, load(builder, builder.add(at, row_bytes), F32V, 4)]
    if storage == "bf16":
        return _halves(builder, at)[: 1 if first_only else 2]
    raw = load(builder, at, I32V, 4)
    if first_only:
        raw = builder.and_(raw, ir.Constant(I32V, [65535] * LANES))
    return [builder.bitcast(raw, BF16V)]


@intrinsic(prefer_literal=True)
def value_tile(
    typingctx: Any, kind: Any, rows: Any, p: Any, p_stride: Any, values: Any, tokens: Any, size: Any, y: Any,
    y_stride: Any,
) -> Any:  # fmt: skip
    """y[r] += sum over t < `tokens` <= 16 of p[r][t] values[t] for one block of heads of `size` numbers; what lies beyond is not
    touched, not even to be multiplied by zero. `kind` and `rows` are literals.
    """
    if not isinstance(kind, types.StringLiteral) or not isinstance(rows, types.IntegerLiteral):
        return None
    storage, count = kind.literal_value, rows.literal_value
    weight_bytes = 4 if storage == "pairs" else 8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, p, p_stride, values, tokens, size, y, y_stride = args
        weights = [builder.add(p, builder.mul(p_stride, I64(row))) for row in range(count)]
        sums = _slots(builder, count)
        row_bytes = builder.mul(size, I64(4))
        two_tokens = builder.mul(size, I64(8 if storage == "f32" else 4))
        full = builder.lshr(tokens, I64(1))
        unrolled = builder.udiv(full, I64(STEPS))
        with cgutils.for_range(builder, builder.udiv(size, I64(LANES)), intp=I64) as across:
            column = builder.add(values, builder.mul(across.index, I64(64)))
            _clear(builder, sums)

            def add(index: Any, step: int, *, first_only: bool = False) -> None:
                at = builder.add(column, builder.mul(index, two_tokens))
                vectors = value_vectors(builder, storage, at, row_bytes, first_only=first_only)
                for weight, own in zip(weights, sums, strict=True):
                    factors = builder.add(weight, builder.mul(index, I64(weight_bytes)))
                    add_step(builder, storage, vectors, factors, own, step)

            with cgutils.for_range(builder, unrolled, intp=I64) as loop:
                for step in range(STEPS):
                    add(builder.add(builder.mul(loop.index, I64(STEPS)), I64(step)), step)
            done = builder.mul(unrolled, I64(STEPS))
            with cgutils.for_range(builder, builder.sub(full, done), intp=I64) as rest:
                add(builder.add(done, rest.index), 0)
            with builder.if_then(builder.trunc(tokens, ir.IntType(1))):
                add(full, 1, first_only=True)
            for row, own in enumerate(sums):
                at = builder.add(builder.add(y, builder.mul(y_stride, I64(row))), builder.mul(across.index, I64(64)))
                target = builder.inttoptr(at, F32V.as_pointer())
                builder.store(builder.fadd(builder.load(target, align=4), _total(builder, own)), target, align=4)
        return context.get_dummy_value()

    return types.void(kind, rows, *[types.int64] * 7), codegen


@intrinsic
def narrow_line(typingctx: Any, source: Any, target: Any, vectors: Any, factor: Any) -> Any:
    """target (bfloat16) = factor * source over 16 * `vectors` floats."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target, vectors, factor = args
        scale, half = splat(builder, factor), ir.VectorType(BF16V.element, LANES)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            value = load(builder, builder.add(source, builder.mul(loop.index, I64(64))), F32V, 4)
            at = builder.add(target, builder.mul(loop.index, I64(32)))
            narrow = builder.fptrunc(builder.fmul(value, scale), half)
            builder.store(narrow, builder.inttoptr(at, half.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32), codegen
