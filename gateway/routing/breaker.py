"""A circuit breaker per route, on a clock that the caller passes in: closed, open for a while, then one probe.

A failure may be the route's (nothing answers there, our credentials are refused) or its request's: an absurd value that makes a
server stumble. The second kind counts under the key that asked, and no single key's failures open the circuit for others, however
many: it is opened for that key alone.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum
from typing import Final

CONSECUTIVE: Final = 5
"""So many failures in a row open the circuit."""
WINDOW: Final = 20
RATE: Final = 0.5
"""So does this share of failures among the last `WINDOW` outcomes."""
MOST_OF_ONE_KEY: Final = 3
"""Of a row of failures so many count at most that one key met: two have to be met by somebody else. Among the last `WINDOW`
outcomes no key's failures stand more than `CONSECUTIVE` times, so nobody pushes out what others met.
"""
MOST_ALONE: Final = 1000
"""So many keys at most are remembered as kept away."""
COOLDOWN_S: Final = 5.0
MOST_COOLDOWN_S: Final = 60.0
PROBE_LIMIT_S: Final = 60.0
"""A probe that never reports back does not keep the circuit half open for ever."""


ROUTES_OWN: Final = ""
"""The failure is the route's, whoever asked."""


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Laws: a closed circuit lets everything through; an open one nothing until its time; a half-open one probe at a time.

    A success closes it and forgets; a failed probe doubles the wait, up to `MOST_COOLDOWN_S`. One key alone never opens it.
    """

    __slots__ = ("_alone", "_cooldown_s", "_history", "_open_until_s", "_probe_at_s", "_tripped")

    def __init__(self) -> None:
        self._history: deque[str | None] = deque(
            maxlen=WINDOW
        )  # the last outcomes: who met a failure; None is a success
        self._alone: dict[str, float] = {}  # keys that met nothing but failures, and until when they are kept away
        self._tripped = False
        self._open_until_s = 0.0
        self._cooldown_s = COOLDOWN_S
        self._probe_at_s: float | None = None

    def state(self, now_s: float) -> State:
        if not self._tripped:
            return State.OPEN if now_s < self._open_until_s else State.CLOSED
        return State.OPEN if now_s < self._open_until_s else State.HALF_OPEN

    @property
    def tripped(self) -> bool:
        return self._tripped

    def allows(self, now_s: float, key: str = ROUTES_OWN) -> bool:
        """Whether a call of `key` may go out now. Takes nothing; `begin` takes the probe."""
        if now_s < self._open_until_s or (self._alone and now_s < self._alone.get(key, 0.0)):
            return False
        return not self._tripped or self._probe_at_s is None or now_s - self._probe_at_s > PROBE_LIMIT_S

    def opens_in_s(self, now_s: float, key: str = ROUTES_OWN) -> float:
        """How long until the next call of `key` may go out, if the circuit is open for it."""
        return max(0.0, max(self._open_until_s, self._alone.get(key, 0.0)) - now_s)

    def begin(self, now_s: float) -> None:
        if self._tripped:
            self._probe_at_s = now_s

    def success(self) -> None:
        if self._tripped:
            self._tripped = False
            self._history.clear()
            self._cooldown_s = COOLDOWN_S
            self._probe_at_s = None
            self._open_until_s = 0.0
        if self._alone:
            self._alone.clear()
        self._history.append(None)

    def hold(self, now_s: float, wait_s: float | None) -> None:
        """The provider wants to be left alone for so long."""
        if wait_s is not None:
            self._open_until_s = max(self._open_until_s, now_s + wait_s)

    def failure(self, now_s: float, retry_after_s: float | None = None, *, key: str = ROUTES_OWN) -> None:
        """`retry_after_s`: the provider's own wish, honoured even when the circuit would stay closed. `key`: who asked, where
        that may be the reason; `ROUTES_OWN` where anybody would have met it.
        """
        self.hold(now_s, retry_after_s)
        if self._tripped:
            if self._probe_at_s is None:
                return  # it began before the circuit opened, and says nothing new
            self._cooldown_s = min(self._cooldown_s * 2, MOST_COOLDOWN_S)
        else:
            if key == ROUTES_OWN or self._history.count(key) < CONSECUTIVE:
                self._history.append(key)
            row = self._row()
            if row[key] >= CONSECUTIVE and key != ROUTES_OWN:
                if len(self._alone) >= MOST_ALONE:
                    self._alone.clear()
                self._alone[key] = now_s + COOLDOWN_S
            if not _exceeded(row) and not self._rate_exceeded():
                return
        self._tripped = True
        self._probe_at_s = None
        self._open_until_s = max(self._open_until_s, now_s + self._cooldown_s)

    def abandoned(self) -> None:
        """The call ended without saying anything about the route (the caller left): a probe is free again."""
        self._probe_at_s = None

    def _row(self) -> Counter[str]:
        """Who met the failures since the last success."""
        row: Counter[str] = Counter()
        for key in reversed(self._history):
            if key is None:
                break
            row[key] += 1
        return row

    def _rate_exceeded(self) -> bool:
        return len(self._history) == WINDOW and WINDOW - self._history.count(None) >= RATE * WINDOW


def _exceeded(row: Counter[str]) -> bool:
    return sum(met if key == ROUTES_OWN else min(met, MOST_OF_ONE_KEY) for key, met in row.items()) >= CONSECUTIVE
