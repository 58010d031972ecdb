"""Attention to keys that many tokens of a step see whole, read once for all of them (cascade attention).

Prompts that begin alike lie in the same blocks (the prefix cache). What a member's queries get from them needs no mask, so the
queries of all members are rows of one product: eight rows times two blocks of keys, or times 32 numbers of the values, stay in
registers. The result is left unfinished: in `out` the weighted sum of values, and beside it the largest score and the sum of
weights, from which attention.py goes on with each member's own blocks. The softmax remains exact: with m = max(m1, m2),
acc = acc1 e^(m1 - m) + acc2 e^(m2 - m), and the sum of weights likewise.

Source: https://flashinfer.ai/2024/02/02/cascade-inference.html. Who shares what: work_items.py.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .attention import BLOCK, MASKED, ONE, ZERO, cap, scaled_copy, softmax
from .attention_tiles import STEPS, add_step, key_vectors, narrow_line, value_vectors
from .tape import TOTAL, operation
from .vector import (
    F32V,
    I64,
    LANES,
    atomic_next,
    load,
    prefetch,
    read_float,
    read_int,
    write_float,
    write_int,
)

TILE = 8
"""Rows (queries) at once."""
PREFIX_TOKENS = 8
"""Tokens per work item: their query heads fill whole tiles."""
AHEAD = 2
"""Blocks whose keys are asked of the memory so long before they are needed; their values are asked for beside the keys."""


@intrinsic(prefer_literal=True)
def _score_blocks(
    typingctx: Any, kind: Any, q: Any, q_stride: Any, first: Any, second: Any, pairs: Any, s: Any, s_stride: Any
) -> Any:
    """s[r][0..31] = q[r] . keys of two blocks, for `TILE` rows of heads of 2 * `pairs` numbers. `kind` is a literal."""
    if not isinstance(kind, types.StringLiteral):
        return None
    storage = kind.literal_value
    query_bytes = 4 if storage == "pairs" else 8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, q, q_stride, first, second, pairs, s, s_stride = args
        queries = [builder.add(q, builder.mul(q_stride, I64(row))) for row in range(TILE)]
        sums = _sums(builder, 2)
        with cgutils.for_range(builder, builder.udiv(pairs, I64(STEPS)), intp=I64) as loop:
            for step in range(STEPS):
                index = builder.add(builder.mul(loop.index, I64(STEPS)), I64(step))
                blocks = [key_vectors(builder, storage, keys, index) for keys in (first, second)]
                for query, own in zip(queries, sums, strict=True):
                    factors = builder.add(query, builder.mul(index, I64(query_bytes)))
                    for slot, vectors in zip(own, blocks, strict=True):
                        add_step(builder, storage, vectors, factors, [slot], step)
        _store(builder, sums, s, s_stride)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 7), codegen


@intrinsic(prefer_literal=True)
def _weigh_values(
    typingctx: Any, kind: Any, columns: Any, p: Any, p_stride: Any, table: Any, blocks: Any, values: Any, block_bytes: Any,
    size: Any, y: Any, y_stride: Any,
) -> Any:  # fmt: skip
    """y[r][0 .. 16 * `columns` - 1] = sum over the tokens t of `blocks` blocks of p[r][t] values[t], for `TILE` rows. `kind` and
    `columns` are literals; `values` is where those numbers of the first block of the pool lie.
    """
    if not isinstance(kind, types.StringLiteral) or not isinstance(columns, types.IntegerLiteral):
        return None
    storage, across = kind.literal_value, columns.literal_value
    weight_bytes = 4 if storage == "pairs" else 8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, p, p_stride, table, blocks, values, block_bytes, size, y, y_stride = args
        weights = [builder.add(p, builder.mul(p_stride, I64(row))) for row in range(TILE)]
        sums = _sums(builder, across)
        row_bytes = builder.mul(size, I64(4))
        two_tokens = builder.mul(size, I64(8 if storage == "f32" else 4))
        with cgutils.for_range(builder, blocks, intp=I64) as over:
            number = load(builder, builder.add(table, builder.mul(over.index, I64(8))), I64, 8)
            block = builder.add(values, builder.mul(number, block_bytes))
            passed = builder.mul(over.index, I64(weight_bytes * BLOCK // 2))
            for step in range(BLOCK // 2):
                at = builder.add(block, builder.mul(two_tokens, I64(step)))
                vectors = [
                    value_vectors(builder, storage, builder.add(at, I64(64 * column)), row_bytes, first_only=False)
                    for column in range(across)
                ]
                for weight, own in zip(weights, sums, strict=True):
                    factors = builder.add(builder.add(weight, passed), I64(step * weight_bytes))
                    for slot, column in zip(own, vectors, strict=True):
                        add_step(builder, storage, column, factors, [slot], step)
        _store(builder, sums, y, y_stride)
        return context.get_dummy_value()

    return types.void(kind, columns, *[types.int64] * 9), codegen


def _sums(builder: Any, across: int) -> list[list[Any]]:
    """`TILE` rows of `across` vectors, all zero."""
    sums = [[cgutils.alloca_once(builder, F32V) for _ in range(across)] for _ in range(TILE)]
    for slot in (slot for own in sums for slot in own):
        builder.store(F32V([0.0] * LANES), slot)
    return sums


def _store(builder: Any, sums: list[list[Any]], target: Any, stride: Any) -> None:
    for row, own in enumerate(sums):
        for column, slot in enumerate(own):
            at = builder.add(builder.add(target, builder.mul(stride, I64(row))), I64(64 * column))
            builder.store(builder.load(slot), builder.inttoptr(at, F32V.as_pointer()), align=4)


@njit(inline="always")
def attend_prefix(kind: str, width: int, row: int) -> int:
    """Arguments: those of `attend` up to its stride of the tables; items (int64 [n, 4]: a sequence in whose table the blocks
    stand, first of its members, members, blocks), query heads, kv heads, head_dim, scale (a float's bits), scratch, scratch
    bytes per thread, scores per row of the scratch, softcap (a float's bits; 0: none), members (int64: tokens of the batch),
    marks (float32 [tokens, query heads, 2]: largest score and sum of weights).
    """
    items = read_int(read_int(row, 3), 2)
    q, q_stride, out, out_stride = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    k_cache, v_cache, tables, table_stride = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    work, heads, kv_heads, size = read_int(row, 12), read_int(row, 13), read_int(row, 14), read_int(row, 15)
    scale, columns, softcap = read_float(row + 128, 0), read_int(row, 19), read_float(row + 160, 0)
    members, marks = read_int(row, 21), read_int(row, 22)
    write_int(row, TOTAL, items * kv_heads)
    done = 0
    task = atomic_next(row)
    if task >= items * kv_heads:
        return 0
    scratch = read_int(row, 17) + atomic_next(row + 8) * read_int(row, 18)
    vectors, group = size // LANES, heads // kv_heads
    query = scratch
    result = query + TILE * size * 4
    scores = result + TILE * size * 4
    head_bytes = BLOCK * size * width
    while task < items * kv_heads:
        item, kv_head = work + (task // kv_heads) * 32, task % kv_heads
        table = tables + read_int(item, 0) * table_stride
        first, tokens, blocks = members + read_int(item, 1) * 8, read_int(item, 2), read_int(item, 3)
        for start in range(0, tokens * group, TILE):
            rows = min(TILE, tokens * group - start)
            for r in range(rows):
                token, head = read_int(first, (start + r) // group), kv_head * group + (start + r) % group
                source = q + token * q_stride + head * size * 4
                if kind == "pairs":
                    narrow_line(source, query + r * size * 4, vectors, scale)
                else:
                    scaled_copy(source, query + r * size * 4, vectors, scale)
            for i in range(rows * size, TILE * size):
                write_float(query, i, ZERO)
            for at in range(0, blocks, 2):
                one = (read_int(table, at) * kv_heads + kv_head) * head_bytes
                two = (read_int(table, at + 1) * kv_heads + kv_head) * head_bytes
                if start == 0:
                    prefetch(v_cache + one, head_bytes)
                    prefetch(v_cache + two, head_bytes)
                    if at + AHEAD < blocks:
                        for coming in range(at + AHEAD, at + AHEAD + 2):
                            prefetch(k_cache + (read_int(table, coming) * kv_heads + kv_head) * head_bytes, head_bytes)
                line = scores + at * BLOCK * 4
                _score_blocks(kind, query, size * 4, k_cache + one, k_cache + two, size // 2, line, columns * 4)
            for r in range(TILE):
                line, mark = scores + r * columns * 4, query + r * 8
                if softcap > ZERO:
                    cap(line, blocks, softcap)
                write_float(mark, 0, MASKED)
                write_float(mark, 1, ZERO)
                softmax(kind, line, blocks, mark)
            values, block_bytes = v_cache + kv_head * head_bytes, kv_heads * head_bytes
            for column in range(0, vectors - 1, 2):
                _weigh_values(
                    kind, 2, scores, columns * 4, table, blocks, values + column * 64, block_bytes, size,
                    result + column * 64, size * 4,
                )  # fmt: skip
            if vectors % 2 == 1:
                last = (vectors - 1) * 64
                _weigh_values(
                    kind,
                    1,
                    scores,
                    columns * 4,
                    table,
                    blocks,
                    values + last,
                    block_bytes,
                    size,
                    result + last,
                    size * 4,
                )
            for r in range(rows):
                token, head = read_int(first, (start + r) // group), kv_head * group + (start + r) % group
                scaled_copy(result + r * size * 4, out + token * out_stride + head * size * 4, vectors, ONE)
                mark = marks + (token * heads + head) * 8
                write_float(mark, 0, read_float(query, 2 * r))
                write_float(mark, 1, read_float(query, 2 * r + 1))
        done += 1
        task = atomic_next(row)
    return done


@operation
def attend_prefix_f32(row: int) -> int:
    return attend_prefix("f32", 4, row)


@operation
def attend_prefix_bf16(row: int) -> int:
    return attend_prefix("bf16", 2, row)
