"""What the operations need to know about a step: which token belongs where. Torch tensors, on the model's device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK = 16
"""Tokens per KV block: slot s is row s % 16 of block s // 16."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """T tokens of S sequences, those of one sequence side by side, in the sequences' order.

    `query_start` [S + 1]: sequence i owns tokens query_start[i] .. query_start[i + 1] - 1 of the batch (kept on the host).
    `context` [S] (host): keys a sequence has after this step, so its last token is at position context - 1.
    `positions`, `slots` [T] int64: a token's position in its sequence, and where its key and value go.
    `block_tables` [S, widest] int64: block numbers; entries beyond a sequence's own are 0 and never read.
    """

    query_start: list[int]
    context: list[int]
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    adapters: tuple[int | None, ...] = ()
    """Each sequence's low-rank adapter, if it has one; empty where nobody has."""
    decoding: torch.Tensor | None = None
    """int32 [T, 4] on the device: attention's work items of a step with one token for each sequence, whose lengths the host does
    not know yet; `context` then has the longest that they may be (triton/attention.py)."""

    @property
    def tokens(self) -> int:
        return self.query_start[-1]

    @property
    def sequences(self) -> int:
        return len(self.context)

    def rows_by_adapter(self) -> dict[int, torch.Tensor]:
        """int64 rows of the step, by the adapter of their sequence."""
        rows: dict[int, list[torch.Tensor]] = {}
        for number, adapter in enumerate(self.adapters):
            if adapter is not None:
                own = torch.arange(self.query_start[number], self.query_start[number + 1], device=self.positions.device)
                rows.setdefault(adapter, []).append(own)
        return {adapter: torch.cat(parts) for adapter, parts in rows.items()}
