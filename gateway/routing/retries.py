"""The retry budget and the pauses: a struggling provider is not buried under its own callers' retries."""

from __future__ import annotations

import random
from typing import Final

SHARE: Final = 0.2
"""Each request earns this much of a retry."""
BURST: Final = 10.0
PER_SECOND: Final = 0.5
"""Earned by time alone, so that a quiet model can still retry."""
BASE_S: Final = 0.2
MOST_PAUSE_S: Final = 4.0
MOST_RETRY_AFTER_S: Final = 8.0
"""A provider that wants a longer wait than this is not waited for."""
MOST_ATTEMPTS: Final = 4


class RetryBudget:
    """A token bucket per model. Over any long run, retries <= BURST + SHARE x requests + PER_SECOND x seconds."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = BURST
        self._at_s: float | None = None

    def request(self, now_s: float) -> None:
        """One caller request arrived."""
        earned = SHARE + (PER_SECOND * (now_s - self._at_s) if self._at_s is not None and now_s > self._at_s else 0.0)
        self._at_s = now_s
        self._tokens = min(BURST, self._tokens + earned)

    def take(self) -> bool:
        """Whether one more attempt may be made; takes it from the budget."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def pause_s(again: int, retry_after_s: float | None, jitter: random.Random) -> float | None:
    """How long to wait before trying the same route for the `again`-th time (1 is the first), or None not to.

    Exponential with full jitter in its upper half; never shorter than what the provider asked for.
    """
    if retry_after_s is not None and retry_after_s > MOST_RETRY_AFTER_S:
        return None
    backoff = min(BASE_S * 2.0 ** (again - 1), MOST_PAUSE_S)
    return max(backoff * (0.5 + 0.5 * jitter.random()), retry_after_s or 0.0)
