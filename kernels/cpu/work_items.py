"""A step's attention as work items: which queries read which keys, found once for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..batch import BLOCK, StepLayout
from .attention import QUERY_TOKENS
from .shared_prefix import PREFIX_TOKENS

Ints = NDArray[np.int64]
LEAST_TOKENS = 4
"""Tokens that see the same blocks whole, from which on these are read for all of them at once."""
LEAST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class WorkItems:
    """`items` [n, 5]: sequence, first token in the batch, tokens, position of the first, blocks at the sequence's beginning that
    are read apart; those with most left to read first.

    `prefixes` [m, 4], what is read apart: a sequence in whose table the blocks stand, first of its members, members, blocks.
    `members` [k]: tokens of the batch. A prefix's blocks are the same in the tables of all its members, an even number, and lie
    before every member's position: no mask is needed.
    """

    items: Ints
    prefixes: Ints
    members: Ints


def attention_items(layout: StepLayout) -> WorkItems:
    """An item of a prompt reads apart what lies before it; items of few tokens do where their sequences begin alike."""
    starts = np.asarray(layout.query_start, dtype=np.int64)
    counts = np.diff(starts)
    first_position = np.asarray(layout.context, dtype=np.int64) - counts
    pieces = -(-counts // QUERY_TOKENS)
    sequence = np.repeat(np.arange(len(counts)), pieces)
    piece = np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    offset = piece * QUERY_TOKENS
    length = np.minimum(counts[sequence] - offset, QUERY_TOKENS)
    position = first_position[sequence] + offset
    apart = np.zeros_like(position)
    items = np.stack([sequence, starts[sequence] + offset, length, position, apart], axis=1)
    groups = _groups(items, layout.block_tables.numpy()) if layout.tokens >= LEAST_TOKENS else []
    prefixes: list[tuple[int, int, int, int]] = []
    members: list[int] = []
    for group, depth in groups:
        items[group, 4] = depth
        taken = [token for _, first, count, *_ in items[group].tolist() for token in range(first, first + count)]
        for at in range(0, len(taken), PREFIX_TOKENS):
            tokens = min(PREFIX_TOKENS, len(taken) - at)
            prefixes.append((int(items[group[0], 0]), len(members) + at, tokens, depth))
        members += taken
    prefixes.sort(key=lambda prefix: -prefix[2] * prefix[3])
    work = items[:, 2] * (items[:, 3] + items[:, 2] - BLOCK * items[:, 4])
    return WorkItems(
        items[np.argsort(-work, kind="stable")],
        np.array(prefixes, dtype=np.int64).reshape(-1, 4),
        np.array(members, dtype=np.int64),
    )


def _groups(items: Ints, tables: Ints) -> list[tuple[Ints, int]]:
    """Items that read their first blocks (so many) together."""
    full = items[:, 3] // BLOCK // 2 * 2
    groups: list[tuple[Ints, int]] = []
    alike: dict[bytes, list[int]] = {}
    for item in np.flatnonzero(full >= LEAST_BLOCKS).tolist():
        if items[item, 2] >= PREFIX_TOKENS:
            groups.append((np.array([item]), int(full[item])))
        else:
            alike.setdefault(tables[items[item, 0], :LEAST_BLOCKS].tobytes(), []).append(item)
    tokens = items[:, 2].tolist()
    enough = [same for same in alike.values() if sum(tokens[item] for item in same) >= LEAST_TOKENS]
    waiting = [np.array(candidates) for candidates in enough]
    while waiting:
        candidates = waiting.pop()
        if items[candidates, 2].sum() < LEAST_TOKENS:
            continue
        group, depth = _deepest(tables[items[candidates, 0]], full[candidates], items[candidates, 2])
        if items[candidates[group], 2].sum() >= LEAST_TOKENS:
            groups.append((candidates[group], depth))
        waiting.append(candidates[~group])
    return groups


def _deepest(tables: Ints, full: Ints, tokens: Ints) -> tuple[NDArray[np.bool_], int]:
    """Of items that begin alike, those to read together with the first of them, and how many blocks: whatever spares the most
    reading.
    """
    widest = int(full[0])
    same = np.cumprod(tables[:, :widest] == tables[0, :widest], axis=1).sum(axis=1)
    runs = np.minimum(same, full) // 2 * 2
    depths = np.unique(runs)
    spared = [int(depth) * int(tokens[runs >= depth].sum() - 1) for depth in depths]
    depth = int(depths[int(np.argmax(spared))])
    return runs >= depth, depth
