"""Small steps to run kernels on."""

from __future__ import annotations

import torch

from kernels.batch import BLOCK, StepLayout


def one_row_each(rows: int) -> StepLayout:
    """`rows` sequences of one token, each in a block of its own."""
    return StepLayout(
        query_start=list(range(rows + 1)),
        context=[1] * rows,
        positions=torch.zeros(rows, dtype=torch.int64),
        slots=torch.arange(rows) * BLOCK,
        block_tables=torch.arange(rows)[:, None],
    )


def mixed(shares: list[tuple[int, int]], blocks: int, seed: int = 0) -> StepLayout:
    """One sequence per (tokens already in the cache, tokens of this step), in blocks scattered over the pool."""
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    widest = max(-(-(start + count) // BLOCK) for start, count in shares)
    tables: list[list[int]] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    for start, count in shares:
        table = [order.pop() for _ in range(-(-(start + count) // BLOCK))]
        own = range(start, start + count)
        positions += own
        slots += [table[p // BLOCK] * BLOCK + p % BLOCK for p in own]
        tables.append(table + [0] * (widest - len(table)))
        query_start.append(query_start[-1] + count)
    return StepLayout(
        query_start=query_start,
        context=[start + count for start, count in shares],
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        block_tables=torch.tensor(tables),
    )
