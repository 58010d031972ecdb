"""Which of several cores a prompt goes to: the one with the fewest sequences, or one that has seen how the prompt begins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .config import BLOCK_SIZE

BEGINNING = 4 * BLOCK_SIZE
"""Tokens by which prompts are taken for alike: a system prompt has more, and only whole blocks are found again."""
KEPT = 4_096
SLACK = 4
"""A core that knows the beginning may have so many sequences more than the one with the fewest: reading a prompt again costs
about as much as these share of a step."""


class CoreChoice:
    """A hint alone: what a core has kept of a prompt it finds by itself."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[bytes, str | None, tuple[int, ...]], set[int]] = OrderedDict()
        self._last = 0

    def choose(self, prompt: Sequence[int], salt: bytes, adapter: str | None, loads: Sequence[int]) -> int:
        """`loads`: sequences in each core."""
        least = min(loads)
        if len(prompt) < BEGINNING:
            return self._fewest(range(len(loads)), loads)
        key = (salt, adapter, tuple(prompt[:BEGINNING]))
        known = self._seen.setdefault(key, set())
        self._seen.move_to_end(key)
        if len(self._seen) > KEPT:
            self._seen.popitem(last=False)
        near = [core for core in known if loads[core] <= least + SLACK]
        chosen = self._fewest(near or range(len(loads)), loads)
        known.add(chosen)
        return chosen

    def _fewest(self, cores: Sequence[int], loads: Sequence[int]) -> int:
        """Among equals in turn, so that a quiet engine warms up all of them."""
        chosen = min(cores, key=lambda core: (loads[core], (core - self._last - 1) % len(loads)))
        self._last = chosen
        return chosen
