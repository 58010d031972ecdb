"""How many tokens one step may compute, so that a step stays short where compute is slow (engine.md: Steps)."""

from __future__ import annotations

START_TOKENS = 256
MIN_TOKENS = 32
_GROWTH = 1.25
_SHRINK_AT_MOST = 0.5


class StepBudget:
    """Adapts to `target_us` of wall time per step; `target_us` 0 keeps `max_tokens` fixed.

    Only steps that were full say anything about the budget; a decode of eight tokens does not.
    """

    def __init__(self, max_tokens: int, target_us: int) -> None:
        self._max = max_tokens
        self._target_us = target_us
        self.tokens = min(START_TOKENS, max_tokens) if target_us else max_tokens

    def for_step(self, running: int) -> int:
        """Tokens of the next step: room for every running sequence to decode, whatever the clock says."""
        return min(self._max, max(self.tokens, running + 1))

    def observe(self, tokens: int, elapsed_us: int) -> None:
        if not self._target_us or tokens * 5 < self.tokens * 4:
            return
        if elapsed_us > self._target_us:
            shrunk = self.tokens * max(_SHRINK_AT_MOST, self._target_us / elapsed_us)
            self.tokens = max(min(MIN_TOKENS, self._max), int(shrunk))
        elif elapsed_us * _GROWTH < self._target_us:
            self.tokens = min(self._max, int(self.tokens * _GROWTH) + 1)
