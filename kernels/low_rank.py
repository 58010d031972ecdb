"""Low-rank adapters of a matrix: out += (x aᵀ) bᵀ, with a pair (a, b) for each adapter and each row's own adapter.

Source: https://arxiv.org/abs/2106.09685; many in one batch: https://arxiv.org/abs/2310.18547 (rows grouped by adapter).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LowRank:
    """a [rank, inputs] and b [outputs, rank]."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stacked:
    """Every pair side by side, padded with zeros to one rank: a [pairs, rank, inputs], b [pairs, outputs, rank].

    `places` int32 [largest slot + 1]: the pair of a slot, or -1.
    """

    a: torch.Tensor
    b: torch.Tensor
    places: torch.Tensor


class AdapterPairs:
    """A matrix's adapters by slot; changed between two steps, never in one."""

    def __init__(self, pairs: Mapping[int, LowRank] | None = None) -> None:
        self._pairs = dict(pairs or {})
        self._stacked: Stacked | None = None

    def get(self, slot: int) -> LowRank | None:
        return self._pairs.get(slot)

    def add(self, slot: int, pair: LowRank) -> None:
        self._pairs[slot], self._stacked = pair, None

    def remove(self, slot: int) -> None:
        if self._pairs.pop(slot, None) is not None:
            self._stacked = None

    def stacked(self) -> Stacked | None:
        """For kernels; None where no adapter changes this matrix. The pairs become parts of it: they are not kept twice."""
        if self._stacked is None and self._pairs:
            self._stacked = self._stack()
        return self._stacked

    def _stack(self) -> Stacked:
        rank = max(pair.a.shape[0] for pair in self._pairs.values())
        first = next(iter(self._pairs.values()))
        a = first.a.new_zeros(len(self._pairs), rank, first.a.shape[1])
        b = first.b.new_zeros(len(self._pairs), first.b.shape[0], rank)
        places = torch.full((max(self._pairs) + 1,), -1, dtype=torch.int32)
        for place, (slot, pair) in enumerate(self._pairs.items()):
            own = pair.a.shape[0]
            a[place, :own], b[place, :, :own], places[slot] = pair.a, pair.b, place
            self._pairs[slot] = LowRank(a[place, :own], b[place, :, :own])
        return Stacked(a, b, places.to(a.device))


def adapt_rows(x: torch.Tensor, adapters: AdapterPairs, rows_of: Mapping[int, torch.Tensor], out: torch.Tensor) -> None:
    """One pair of products for each adapter in the batch, over all of its rows (`rows_of`: int64, by slot). The reference."""
    for slot, rows in rows_of.items():
        pair = adapters.get(slot)
        if pair is not None:
            out.index_add_(0, rows, x[rows] @ pair.a.T @ pair.b.T)
