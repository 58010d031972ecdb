"""What changes from step to step, where a tape reads it: arrays that never move."""

from __future__ import annotations

import numpy as np

from ..batch import BLOCK, StepLayout
from .work_items import Ints, attention_items


class StepInputs:
    def __init__(self, capacity: int, max_context: int) -> None:
        """`capacity`: tokens per step; `max_context`: longest context of a sequence."""
        self.header: Ints = np.zeros(3, dtype=np.int64)
        """Tokens, items, prefixes."""
        self.positions: Ints = np.zeros(capacity, dtype=np.int64)
        self.slots: Ints = np.zeros(capacity, dtype=np.int64)
        self.tables: Ints = np.zeros((capacity, -(-max_context // BLOCK)), dtype=np.int64)
        self.items: Ints = np.zeros((capacity, 5), dtype=np.int64)
        self.prefixes: Ints = np.zeros((capacity, 4), dtype=np.int64)
        self.members: Ints = np.zeros(capacity, dtype=np.int64)

    def place(self, layout: StepLayout) -> None:
        tokens = layout.tokens
        work = attention_items(layout)
        self.positions[:tokens] = layout.positions.numpy()
        self.slots[:tokens] = layout.slots.numpy()
        self.tables[: layout.sequences, : layout.block_tables.shape[1]] = layout.block_tables.numpy()
        self.items[: len(work.items)] = work.items
        self.prefixes[: len(work.prefixes)] = work.prefixes
        self.members[: len(work.members)] = work.members
        self.header[:] = tokens, len(work.items), len(work.prefixes)
