"""Paged attention over a mixed batch: softmax(cap(q Kᵀ scale)) V, keys and values read through block tables.

A work item is a run of consecutive query tokens of one sequence (one token when it decodes, up to `QUERY_TOKENS` of a prompt);
a task is one item and one kv head. Its rows are (token, query head of that kv head): keys are widened once for up to six
rows. Scores of a tile lie in the thread's scratch, so that the softmax is exact over the whole context; keys beyond a row's
own position or before its window get weight 0. What lies beyond the tile's last position may be another sequence's NaN: its
scores are overwritten, its values never multiplied. No block before the one in which the window of the tile's first position
begins is read (it may be given back).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import carray, njit

from .attention_tiles import narrow_line, score_tile, value_tile
from .elementwise import store_bf16
from .softmax import MASKED, ONE, ZERO, cap, scaled_copy, softmax
from .tape import TOTAL, operation
from .vector import (
    LANES,
    as_pointer,
    atomic_next,
    prefetch,
    read_float,
    read_int,
    write_float,
    write_int,
)  # fmt: skip

QUERY_TOKENS = 16
"""Query tokens per work item."""
TILE = 6
BLOCK = 16
AHEAD = 2 * BLOCK
"""Tokens whose keys or values are asked of the memory so long before they are needed."""


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


class Step(NamedTuple):
    """What a row of the tape tells both kernels of attention, and where this thread's scratch lies."""

    q: int
    q_stride: int
    out: int
    out_stride: int
    k_cache: int
    v_cache: int
    tables: int
    table_stride: int
    heads: int
    kv_heads: int
    group: int
    size: int
    scale: float
    columns: int
    head_bytes: int
    """Of one block's keys (or values) for one kv head."""
    query: int
    result: int
    scores: int


@njit(inline="always")
def read_step(row: int, width: int, tile: int) -> Step:
    """Takes a place in the scratch. `width`: bytes of a cached number; `tile`: rows at once."""
    heads, kv_heads, size = read_int(row, 13), read_int(row, 14), read_int(row, 15)
    query = read_int(row, 17) + atomic_next(row + 8) * read_int(row, 18)
    result = query + tile * size * 4
    return Step(
        read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7),
        read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11),
        heads, kv_heads, heads // kv_heads, size, read_float(row + 128, 0), read_int(row, 19), BLOCK * size * width,
        query, result, result + tile * size * 4,
    )  # fmt: skip


class Tile(NamedTuple):
    """Rows of a task that are computed at once: `rows` of them from `start` on."""

    table: int
    kv_head: int
    first: int
    """The item's first token in the batch; it stands at `position`."""
    position: int
    start: int
    rows: int
    shared: int
    """Blocks of which a part lies in out already."""
    begin: int
    length: int
    """Keys from `begin` to before `length` are read."""


@njit(inline="always")
def _tile(step: Step, item: int, kv_head: int, start: int, window: int) -> Tile:
    table = step.tables + read_int(item, 0) * step.table_stride
    first, tokens, position = read_int(item, 1), read_int(item, 2), read_int(item, 3)
    shared = 0 if window > 0 else read_int(item, 4)
    rows = min(TILE, tokens * step.group - start)
    begin = shared * BLOCK
    if window > 0:
        begin = max(0, position + start // step.group + 1 - window) // BLOCK * BLOCK
    length = position + (start + rows - 1) // step.group + 1
    return Tile(table, kv_head, first, position, start, rows, shared, begin, length)


@njit(inline="always")
def _row(step: Step, tile: Tile, r: int) -> tuple[int, int]:
    """The token in the batch and the query head of a tile's row."""
    at = tile.start + r
    return tile.first + at // step.group, tile.kv_head * step.group + at % step.group


@njit(inline="always")
def take_query(kind: str, step: Step, token: int, head: int, target: int) -> None:
    """A token's query of one head, times the scale."""
    source = step.q + token * step.q_stride + head * step.size * 4
    if kind == "pairs":
        narrow_line(source, target, step.size // LANES, step.scale)
    else:
        scaled_copy(source, target, step.size // LANES, step.scale)


@njit(inline="always")
def block_at(step: Step, table: int, kv_head: int, number: int) -> int:
    """Where a block of a sequence lies in either cache."""
    return (read_int(table, number) * step.kv_heads + kv_head) * step.head_bytes


@njit(inline="always")
def _ask_ahead(step: Step, tile: Tile, cache: int, at: int) -> None:
    if tile.start == 0 and at + AHEAD < tile.length:
        prefetch(cache + block_at(step, tile.table, tile.kv_head, at // BLOCK + AHEAD // BLOCK), step.head_bytes)


@njit(inline="always")
def _score_keys(kind: str, step: Step, tile: Tile) -> None:
    for at in range(tile.begin, tile.length, BLOCK):
        keys = step.k_cache + block_at(step, tile.table, tile.kv_head, at // BLOCK)
        _ask_ahead(step, tile, step.k_cache, at)
        line = step.scores + (at - tile.begin) * 4
        _score_block(kind, tile.rows, step.query, step.size * 4, keys, step.size // 2, line, step.columns * 4)


@njit(inline="always")
def _hide(line: int, own: int, padded: int, window: int) -> None:
    """Masks a row's scores: of keys beyond its position, which is the last of its `own`, and of those before its window."""
    for t in range(own, padded):
        write_float(line, t, MASKED)
    if window > 0:
        for t in range(own - window):
            write_float(line, t, MASKED)


@njit(inline="always")
def _weigh(kind: str, step: Step, tile: Tile, window: int, softcap: float, marks: int) -> None:
    """Scores become weights; the result becomes what the part read before has, as these weigh it."""
    padded = (tile.length - tile.begin + LANES - 1) // LANES
    for r in range(tile.rows):
        line = step.scores + r * step.columns * 4
        if softcap > ZERO:
            cap(line, padded, softcap)
        _hide(line, tile.position + (tile.start + r) // step.group + 1 - tile.begin, padded * LANES, window)
        token, head = _row(step, tile, r)
        part, mark, sums = marks + (token * step.heads + head) * 8, step.query + r * 8, step.result + r * step.size * 4
        write_float(mark, 0, read_float(part, 0) if tile.shared > 0 else MASKED)
        write_float(mark, 1, read_float(part, 1) if tile.shared > 0 else ZERO)
        shrunk = softmax(kind, line, padded, mark)
        if tile.shared > 0:
            scaled_copy(step.out + token * step.out_stride + head * step.size * 4, sums, step.size // LANES, shrunk)
        else:
            for i in range(step.size):
                write_float(sums, i, ZERO)


@njit(inline="always")
def _add_values(kind: str, step: Step, tile: Tile) -> None:
    for at in range(tile.begin, tile.length, BLOCK):
        values = step.v_cache + block_at(step, tile.table, tile.kv_head, at // BLOCK)
        _ask_ahead(step, tile, step.v_cache, at)
        count = min(BLOCK, tile.length - at)
        line = step.scores + (at - tile.begin) * (2 if kind == "pairs" else 4)
        _value_block(kind, tile.rows, line, step.columns * 4, values, count, step.size, step.result, step.size * 4)


@njit(inline="always")
def _give(step: Step, tile: Tile, twin: int, twin_stride: int) -> None:
    """Sums over weights, to `out` and, where it is wanted, in bfloat16."""
    for r in range(tile.rows):
        token, head = _row(step, tile, r)
        target = step.out + token * step.out_stride + head * step.size * 4
        total = read_float(step.query, 2 * r + 1)
        scaled_copy(step.result + r * step.size * 4, target, step.size // LANES, ONE / total)
        if twin != 0:
            narrow = twin + token * twin_stride + head * step.size * 2
            store_bf16(
                carray(as_pointer(target), (step.size,), np.float32),
                carray(as_pointer(narrow), (step.size,), np.uint16),
                step.size,
            )


@njit(inline="always")
def attend(kind: str, width: int, row: int) -> int:
    """Arguments: q, its token stride (bytes), out, its token stride, k_cache, v_cache, block tables (int64), their stride
    (bytes), items (int64 [n, 5]: sequence, first token in the batch, tokens, position of the first, blocks of whose keys
    shared_prefix.py has left a part in out), query heads, kv heads, head_dim, scale (a float's bits), scratch, scratch bytes per
    thread, scores per row of the scratch, window (0: none), softcap (a float's bits; 0: none), where to put out in bfloat16 as
    well (0: nowhere), its token stride, marks (float32 [tokens, query heads, 2]: of those parts).
    """
    step = read_step(row, width, TILE)
    window, softcap, marks = read_int(row, 20), read_float(row + 168, 0), read_int(row, 24)
    tasks = read_int(read_int(row, 3), 1) * step.kv_heads
    write_int(row, TOTAL, tasks)
    done = 0
    task = atomic_next(row)
    while task < tasks:
        item, kv_head = read_int(row, 12) + (task // step.kv_heads) * 40, task % step.kv_heads
        for start in range(0, read_int(item, 2) * step.group, TILE):
            tile = _tile(step, item, kv_head, start, window)
            for r in range(tile.rows):
                token, head = _row(step, tile, r)
                take_query(kind, step, token, head, step.query + r * step.size * 4)
            _score_keys(kind, step, tile)
            _weigh(kind, step, tile, window, softcap, marks)
            _add_values(kind, step, tile)
            _give(step, tile, read_int(row, 22), read_int(row, 23))
        done += 1
        task = atomic_next(row)
    return done


@operation
def attend_f32(row: int) -> int:
    return attend("f32", 4, row)


@operation
def attend_bf16(row: int) -> int:
    return attend("bf16", 2, row)
