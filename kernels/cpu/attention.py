"""Paged attention over a mixed batch: softmax(cap(q Kᵀ scale)) V, keys and values read through block tables.

A work item is a run of consecutive query tokens of one sequence (one token when it decodes, up to `QUERY_TOKENS` of a prompt);
a task is one item and one kv head. Its rows are (token, query head of that kv head): keys are widened once for up to six
rows. Scores of a tile lie in the thread's scratch, so that the softmax is exact over the whole context; keys beyond a row's
own position or before its window get weight 0. What lies beyond the tile's last position may be another sequence's NaN: its
scores are overwritten, its values never multiplied. No block before the one in which the window of the tile's first position
begins is read (it may be given back).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .attention_tiles import narrow_line, score_tile, value_tile
from .elementwise import store_bf16
from .tape import TOTAL, operation
from .vector import (
    BF16,
    F32,
    F32V,
    I64,
    LANES,
    as_pointer,
    atomic_next,
    exp,
    load,
    prefetch,
    read_float,
    read_int,
    splat,
    sum_lanes,
    write_float,
    write_int,
)  # fmt: skip

QUERY_TOKENS = 16
"""Query tokens per work item."""
TILE = 6
BLOCK = 16
AHEAD = 2 * BLOCK
"""Tokens whose keys or values are asked of the memory so long before they are needed."""
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


@njit(inline="always")
def _score_block(kind: str, rows: int, q: int, q_stride: int, keys: int, pairs: int, s: int, s_stride: int) -> None:
    if rows == 6:
        score_tile(kind, 6, q, q_stride, keys, pairs, s, s_stride)
    elif rows == 5:
        score_tile(kind, 5, q, q_stride, keys, pairs, s, s_stride)
    elif rows == 4:
        score_tile(kind, 4, q, q_stride, keys, pairs, s, s_stride)
    elif rows == 3:
        score_tile(kind, 3, q, q_stride, keys, pairs, s, s_stride)
    elif rows == 2:
        score_tile(kind, 2, q, q_stride, keys, pairs, s, s_stride)
    else:
        score_tile(kind, 1, q, q_stride, keys, pairs, s, s_stride)


@njit(inline="always")
def _value_block(
    kind: str, rows: int, p: int, p_stride: int, values: int, tokens: int, size: int, y: int, y_stride: int
) -> None:
    if rows == 6:
        value_tile(kind, 6, p, p_stride, values, tokens, size, y, y_stride)
    elif rows == 5:
        value_tile(kind, 5, p, p_stride, values, tokens, size, y, y_stride)
    elif rows == 4:
        value_tile(kind, 4, p, p_stride, values, tokens, size, y, y_stride)
    elif rows == 3:
        value_tile(kind, 3, p, p_stride, values, tokens, size, y, y_stride)
    elif rows == 2:
        value_tile(kind, 2, p, p_stride, values, tokens, size, y, y_stride)
    else:
        value_tile(kind, 1, p, p_stride, values, tokens, size, y, y_stride)


@njit(inline="always")
def attend(kind: str, width: int, row: int) -> int:
    """Arguments: q, its token stride (bytes), out, its token stride, k_cache, v_cache, block tables (int64), their stride
    (bytes), items (int64 [n, 5]: sequence, first token in the batch, tokens, position of the first, blocks of whose keys
    shared_prefix.py has left a part in out), query heads, kv heads, head_dim, scale (a float's bits), scratch, scratch bytes per
    thread, scores per row of the scratch, window (0: none), softcap (a float's bits; 0: none), where to put out in bfloat16 as
    well (0: nowhere), its token stride, marks (float32 [tokens, query heads, 2]: of those parts).
    """
    header = read_int(row, 3)
    items = read_int(header, 1)
    q, q_stride, out, out_stride = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    k_cache, v_cache, tables, table_stride = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    work, heads, kv_heads, size = read_int(row, 12), read_int(row, 13), read_int(row, 14), read_int(row, 15)
    scale, columns = read_float(row + 128, 0), read_int(row, 19)
    window, softcap = read_int(row, 20), read_float(row + 168, 0)
    twin, twin_stride, marks = read_int(row, 22), read_int(row, 23), read_int(row, 24)
    scratch = read_int(row, 17) + atomic_next(row + 8) * read_int(row, 18)
    vectors, group = size // LANES, heads // kv_heads
    query = scratch
    result = query + TILE * size * 4
    scores = result + TILE * size * 4
    head_bytes = BLOCK * size * width
    write_int(row, TOTAL, items * kv_heads)
    done = 0
    task = atomic_next(row)
    while task < items * kv_heads:
        item, kv_head = work + (task // kv_heads) * 40, task % kv_heads
        table = tables + read_int(item, 0) * table_stride
        first, tokens, position = read_int(item, 1), read_int(item, 2), read_int(item, 3)
        shared = 0 if window > 0 else read_int(item, 4)
        for start in range(0, tokens * group, TILE):
            rows = min(TILE, tokens * group - start)
            for r in range(rows):
                token, head = (start + r) // group, kv_head * group + (start + r) % group
                source = q + (first + token) * q_stride + head * size * 4
                if kind == "pairs":
                    narrow_line(source, query + r * size * 4, vectors, scale)
                else:
                    scaled_copy(source, query + r * size * 4, vectors, scale)
            length = position + (start + rows - 1) // group + 1
            begin = shared * BLOCK
            if window > 0:
                begin = max(0, position + start // group + 1 - window) // BLOCK * BLOCK
            for at in range(begin, length, BLOCK):
                place = (read_int(table, at // BLOCK) * kv_heads + kv_head) * head_bytes
                if start == 0 and at + AHEAD < length:
                    coming = (read_int(table, at // BLOCK + AHEAD // BLOCK) * kv_heads + kv_head) * head_bytes
                    prefetch(k_cache + coming, head_bytes)
                line = scores + (at - begin) * 4
                _score_block(kind, rows, query, size * 4, k_cache + place, size // 2, line, columns * 4)
            padded = (length - begin + LANES - 1) // LANES
            for r in range(rows):
                own = position + (start + r) // group + 1 - begin
                line = scores + r * columns * 4
                if softcap > ZERO:
                    cap(line, padded, softcap)
                for t in range(own, padded * LANES):
                    write_float(line, t, MASKED)
                if window > 0:
                    for t in range(own - window):
                        write_float(line, t, MASKED)
                token, head = first + (start + r) // group, kv_head * group + (start + r) % group
                part, mark, sums = marks + (token * heads + head) * 8, query + r * 8, result + r * size * 4
                write_float(mark, 0, read_float(part, 0) if shared > 0 else MASKED)
                write_float(mark, 1, read_float(part, 1) if shared > 0 else ZERO)
                shrunk = softmax(kind, line, padded, mark)
                if shared > 0:
                    scaled_copy(out + token * out_stride + head * size * 4, sums, vectors, shrunk)
                else:
                    for i in range(size):
                        write_float(sums, i, ZERO)
            for at in range(begin, length, BLOCK):
                place = (read_int(table, at // BLOCK) * kv_heads + kv_head) * head_bytes
                count = min(BLOCK, length - at)
                if start == 0 and at + AHEAD < length:
                    coming = (read_int(table, at // BLOCK + AHEAD // BLOCK) * kv_heads + kv_head) * head_bytes
                    prefetch(v_cache + coming, head_bytes)
                line = scores + (at - begin) * (2 if kind == "pairs" else 4)
                _value_block(kind, rows, line, columns * 4, v_cache + place, count, size, result, size * 4)
            for r in range(rows):
                token, head = (start + r) // group, kv_head * group + (start + r) % group
                target = out + (first + token) * out_stride + head * size * 4
                scaled_copy(result + r * size * 4, target, vectors, ONE / read_float(query, 2 * r + 1))
                if twin != 0:
                    narrow = twin + (first + token) * twin_stride + head * size * 2
                    store_bf16(
                        carray(as_pointer(target), (size,), np.float32),
                        carray(as_pointer(narrow), (size,), np.uint16),
                        size,
                    )
        done += 1
        task = atomic_next(row)
    return done


@operation
def attend_f32(row: int) -> int:
    return attend("f32", 4, row)


@operation
def attend_bf16(row: int) -> int:
    return attend("bf16", 2, row)
