"""The retry budget and the pauses: a struggling provider is not buried under its own callers' retries."""

from __future__ import annotations

import random
from typing import Final

SHARE: Final = 0.2
"""Each request earns this much of a retry."""
BURST: Final = 20.0
"""One key, alone, gets by two dead routes until their circuits open."""
BURST_OF_A_KEY: Final = BURST / 2
MOST_KEYS: Final = 1000
"""Keys that have lately drawn on a budget; one that is not among them has its whole share."""
PER_SECOND: Final = 0.5
"""Earned by time alone, so that a quiet model can still retry."""
BASE_S: Final = 0.2
MOST_PAUSE_S: Final = 4.0
MOST_RETRY_AFTER_S: Final = 8.0
"""A provider that wants a longer wait than this is not waited for."""
MOST_ATTEMPTS: Final = 4


class RetryBudget:
    """A token bucket per model, and a smaller one per key that has drawn on it.

    Over any long run, retries <= BURST + SHARE x requests + PER_SECOND x seconds, and those of one key at most half the burst
    and half of what time earns, beside what its own requests earn. So whatever one key's requests meet, `BURST / 2` and all that
    others earn are left to the others.
    """

    __slots__ = ("_at_s", "_keys", "_tokens")

    def __init__(self) -> None:
        self._tokens = BURST
        self._at_s: float | None = None
        self._keys: dict[str, _KeyBucket] = {}

    def request(self, now_s: float, key: str) -> None:
        """One caller request arrived."""
        earned = SHARE + (PER_SECOND * (now_s - self._at_s) if self._at_s is not None and now_s > self._at_s else 0.0)
        self._at_s = now_s
        self._tokens = min(BURST, self._tokens + earned)
        if self._keys and (own := self._keys.get(key)) is not None:
            own.earn(now_s)
            if own.tokens >= BURST_OF_A_KEY:
                del self._keys[key]

    def take(self, key: str) -> bool:
        """Whether one more attempt may be made for `key`; takes it from the budget."""
        if self._tokens < 1.0:
            return False
        own = self._keys.get(key)
        if own is None:
            if len(self._keys) >= MOST_KEYS:
                self._keys.clear()
            own = self._keys[key] = _KeyBucket(self._at_s or 0.0)
        if own.tokens < 1.0:
            return False
        own.tokens -= 1.0
        self._tokens -= 1.0
        return True


class _KeyBucket:
    __slots__ = ("at_s", "tokens")

    def __init__(self, now_s: float) -> None:
        self.tokens = BURST_OF_A_KEY
        self.at_s = now_s

    def earn(self, now_s: float) -> None:
        self.tokens = min(BURST_OF_A_KEY, self.tokens + SHARE + PER_SECOND / 2 * max(0.0, now_s - self.at_s))
        self.at_s = now_s


def pause_s(again: int, retry_after_s: float | None, jitter: random.Random) -> float | None:
    """How long to wait before trying the same route for the `again`-th time (1 is the first), or None not to.

    Exponential with full jitter in its upper half; never shorter than what the provider asked for.
    """
    if retry_after_s is not None and retry_after_s > MOST_RETRY_AFTER_S:
        return None
    backoff = min(BASE_S * 2.0 ** (again - 1), MOST_PAUSE_S)
    return max(backoff * (0.5 + 0.5 * jitter.random()), retry_after_s or 0.0)
