"""Speculative decoding by prompt lookup: what followed the last tokens when they stood there before is guessed to follow again.

Guesses are computed together with the newest token, and hold as far as they are what is drawn in their place (drawing.py), by the
same random numbers as without: the output is the same, only sooner. Source: https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import SpeculativeConfig

EXPLORE_EVERY = 32
"""Steps after which the way that seems dearer is tried again."""
MEMORY = 0.2
"""Weight of the newest step in an average."""


class NgramIndex:
    """Where each run of tokens stood last in one growing sequence."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = 0

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that followed the longest known end of `tokens`. `tokens` only ever grows between two calls."""
        for end in range(self._read, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._read = len(tokens)
        for size in self._sizes:
            found = self._ends.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if found is not None:
                return tuple(tokens[found : found + most])
        return ()


@dataclass(slots=True)
class _Cost:
    """Microseconds for each token that came out, as averages over steps; None before the first."""

    plain: float | None = None
    drafted: float | None = None
    steps: int = 0


class Speculator:
    """Guesses for all sequences, and judges by the clock whether guessing pays at this number of sequences."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._indexes: dict[int, NgramIndex] = {}
        self._costs: dict[int, _Cost] = {}
        self.drafted = self.accepted = 0
        self._on = True

    def begin_step(self, running: int) -> None:
        """Decides whether this step guesses."""
        cost = self._costs.setdefault(running.bit_length(), _Cost())
        cost.steps += 1
        if cost.plain is None or cost.drafted is None:
            self._on = cost.drafted is None or cost.steps % 2 == 0
            return
        better = cost.drafted < cost.plain
        self._on = better != (cost.steps % EXPLORE_EVERY == 0)

    def guess(self, sequence_id: int, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        most = min(most, self._config.num_speculative_tokens)
        if not self._on or most < 1:
            return ()
        index = self._indexes.get(sequence_id)
        if index is None:
            config = self._config
            index = self._indexes[sequence_id] = NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max)
        return index.guess(tokens, most)

    def forget(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)

    def end_step(self, running: int, drafted: int, accepted: int, tokens: int, elapsed_us: int) -> None:
        """Of a step in which everybody decoded: guesses, those that held, tokens that came out, and how long it took."""
        self.drafted += drafted
        self.accepted += accepted
        if not tokens:
            return
        cost, each = self._costs.setdefault(running.bit_length(), _Cost()), elapsed_us / tokens
        if drafted:
            cost.drafted = each if cost.drafted is None else cost.drafted + MEMORY * (each - cost.drafted)
        else:
            cost.plain = each if cost.plain is None else cost.plain + MEMORY * (each - cost.plain)
