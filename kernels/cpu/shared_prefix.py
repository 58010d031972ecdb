"""Attention to keys that many tokens of a step see whole, read once for all of them (cascade attention).

Prompts that begin alike lie in the same blocks (the prefix cache). What a member's queries get from them needs no mask, so the
queries of all members are rows of one product: eight rows times two blocks of keys, or times 32 numbers of the values, stay in
registers. The result is left unfinished: in `out` the weighted sum of values, and beside it the largest score and the sum of
weights, from which attention.py goes on with each member's own blocks. The softmax remains exact: with m = max(m1, m2),
acc = acc1 e^(m1 - m) + acc2 e^(m2 - m), and the sum of weights likewise.

Source: https://flashinfer.ai/2024/02/02/cascade-inference.html. Who shares what: work_items.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .attention import BLOCK, Step, block_at, read_step, take_query
from .attention_tiles import STEPS, add_step, key_vectors, value_vectors
from .softmax import MASKED, ONE, ZERO, cap, scaled_copy, softmax
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


class Tile(NamedTuple):
    """Rows of a task that are computed at once: `rows` of them from `start` on, of the tokens that `members` names."""

    table: int
    kv_head: int
    members: int
    blocks: int
    start: int
    rows: int


@njit(inline="always")
def _tile(step: Step, item: int, kv_head: int, start: int, members: int) -> Tile:
    table = step.tables + read_int(item, 0) * step.table_stride
    rows = min(TILE, read_int(item, 2) * step.group - start)
    return Tile(table, kv_head, members + read_int(item, 1) * 8, read_int(item, 3), start, rows)


@njit(inline="always")
def _row(step: Step, tile: Tile, r: int) -> tuple[int, int]:
    """The token in the batch and the query head of a tile's row."""
    at = tile.start + r
    return read_int(tile.members, at // step.group), tile.kv_head * step.group + at % step.group


@njit(inline="always")
def _take_queries(kind: str, step: Step, tile: Tile) -> None:
    """The tile is always whole: rows without a token are 0."""
    for r in range(tile.rows):
        token, head = _row(step, tile, r)
        take_query(kind, step, token, head, step.query + r * step.size * 4)
    for i in range(tile.rows * step.size, TILE * step.size):
        write_float(step.query, i, ZERO)


@njit(inline="always")
def _ask_ahead(step: Step, tile: Tile, at: int, one: int, two: int) -> None:
    prefetch(step.v_cache + one, step.head_bytes)
    prefetch(step.v_cache + two, step.head_bytes)
    if at + AHEAD < tile.blocks:
        for coming in range(at + AHEAD, at + AHEAD + 2):
            prefetch(step.k_cache + block_at(step, tile.table, tile.kv_head, coming), step.head_bytes)


@njit(inline="always")
def _score_keys(kind: str, step: Step, tile: Tile) -> None:
    for at in range(0, tile.blocks, 2):
        one = block_at(step, tile.table, tile.kv_head, at)
        two = block_at(step, tile.table, tile.kv_head, at + 1)
        if tile.start == 0:
            _ask_ahead(step, tile, at, one, two)
        line, first, second = step.scores + at * BLOCK * 4, step.k_cache + one, step.k_cache + two
        _score_blocks(kind, step.query, step.size * 4, first, second, step.size // 2, line, step.columns * 4)


@njit(inline="always")
def _weigh(kind: str, step: Step, tile: Tile, softcap: float) -> None:
    """Scores become weights; the queries' place is taken by the marks."""
    for r in range(TILE):
        line, mark = step.scores + r * step.columns * 4, step.query + r * 8
        if softcap > ZERO:
            cap(line, tile.blocks, softcap)
        write_float(mark, 0, MASKED)
        write_float(mark, 1, ZERO)
        softmax(kind, line, tile.blocks, mark)


@njit(inline="always")
def _add_values(kind: str, step: Step, tile: Tile) -> None:
    vectors = step.size // LANES
    values, block_bytes = step.v_cache + tile.kv_head * step.head_bytes, step.kv_heads * step.head_bytes
    for column in range(0, vectors - 1, 2):
        _weigh_values(
            kind, 2, step.scores, step.columns * 4, tile.table, tile.blocks, values + column * 64, block_bytes, step.size,
            step.result + column * 64, step.size * 4,
        )  # fmt: skip
    if vectors % 2 == 1:
        last = (vectors - 1) * 64
        _weigh_values(
            kind, 1, step.scores, step.columns * 4, tile.table, tile.blocks, values + last, block_bytes, step.size,
            step.result + last, step.size * 4,
        )  # fmt: skip


@njit(inline="always")
def _leave(step: Step, tile: Tile, marks: int) -> None:
    """The sums to `out` as they are, and their marks beside it."""
    for r in range(tile.rows):
        token, head = _row(step, tile, r)
        target = step.out + token * step.out_stride + head * step.size * 4
        scaled_copy(step.result + r * step.size * 4, target, step.size // LANES, ONE)
        mark = marks + (token * step.heads + head) * 8
        write_float(mark, 0, read_float(step.query, 2 * r))
        write_float(mark, 1, read_float(step.query, 2 * r + 1))


@njit(inline="always")
def attend_prefix(kind: str, width: int, row: int) -> int:
    """Arguments: those of `attend` up to its stride of the tables; items (int64 [n, 4]: a sequence in whose table the blocks
    stand, first of its members, members, blocks), query heads, kv heads, head_dim, scale (a float's bits), scratch, scratch
    bytes per thread, scores per row of the scratch, softcap (a float's bits; 0: none), members (int64: tokens of the batch),
    marks (float32 [tokens, query heads, 2]: largest score and sum of weights).
    """
    softcap, members, marks = read_float(row + 160, 0), read_int(row, 21), read_int(row, 22)
    tasks = read_int(read_int(row, 3), 2) * read_int(row, 14)
    write_int(row, TOTAL, tasks)
    done = 0
    task = atomic_next(row)
    if task >= tasks:
        return 0
    step = read_step(row, width, TILE)
    while task < tasks:
        item, kv_head = read_int(row, 12) + (task // step.kv_heads) * 32, task % step.kv_heads
        for start in range(0, read_int(item, 2) * step.group, TILE):
            tile = _tile(step, item, kv_head, start, members)
            _take_queries(kind, step, tile)
            _score_keys(kind, step, tile)
            _weigh(kind, step, tile, softcap)
            _add_values(kind, step, tile)
            _leave(step, tile, marks)
        done += 1
        task = atomic_next(row)
    return done


@operation
def attend_prefix_f32(row: int) -> int:
    return attend_prefix("f32", 4, row)


@operation
def attend_prefix_bf16(row: int) -> int:
    return attend_prefix("bf16", 2, row)
