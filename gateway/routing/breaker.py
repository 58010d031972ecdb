"""A circuit breaker per route, on a clock that the caller passes in: closed, open for a while, then one probe."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

CONSECUTIVE: Final = 5
"""So many failures in a row open the circuit."""
WINDOW: Final = 20
RATE: Final = 0.5
"""So does this share of failures among the last `WINDOW` outcomes."""
COOLDOWN_S: Final = 5.0
MOST_COOLDOWN_S: Final = 60.0
PROBE_LIMIT_S: Final = 60.0
"""A probe that never reports back does not keep the circuit half open for ever."""


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Laws: a closed circuit lets everything through; an open one nothing until its time; a half-open one probe at a time.

    A success closes it and forgets; a failed probe doubles the wait, up to `MOST_COOLDOWN_S`.
    """

    __slots__ = ("_consecutive", "_cooldown_s", "_history", "_open_until_s", "_probe_at_s", "_seen", "_tripped")

    def __init__(self) -> None:
        self._consecutive = 0
        self._history = 0  # bits of the last WINDOW outcomes, 1 is a failure
        self._seen = 0
        self._tripped = False
        self._open_until_s = 0.0
        self._cooldown_s = COOLDOWN_S
        self._probe_at_s: float | None = None

    def state(self, now_s: float) -> State:
        if not self._tripped:
            return State.OPEN if now_s < self._open_until_s else State.CLOSED
        return State.OPEN if now_s < self._open_until_s else State.HALF_OPEN

    def allows(self, now_s: float) -> bool:
        """Whether a call may go out now. Takes nothing; `begin` takes the probe."""
        if now_s < self._open_until_s:
            return False
        return not self._tripped or self._probe_at_s is None or now_s - self._probe_at_s > PROBE_LIMIT_S

    def opens_in_s(self, now_s: float) -> float:
        """How long until the next call may go out, if the circuit is open."""
        return max(0.0, self._open_until_s - now_s)

    def begin(self, now_s: float) -> None:
        if self._tripped:
            self._probe_at_s = now_s

    def success(self) -> None:
        if self._consecutive or self._tripped or self._history:
            self._consecutive = 0
            if self._tripped:
                self._tripped = False
                self._history = self._seen = 0
                self._cooldown_s = COOLDOWN_S
                self._probe_at_s = None
                self._open_until_s = 0.0
        self._note(0)

    def failure(self, now_s: float, retry_after_s: float | None = None) -> None:
        """`retry_after_s`: the provider's own wish, honoured even when the circuit would stay closed."""
        self._consecutive += 1
        self._note(1)
        if retry_after_s is not None:
            self._open_until_s = max(self._open_until_s, now_s + retry_after_s)
        if self._tripped:
            self._cooldown_s = min(self._cooldown_s * 2, MOST_COOLDOWN_S)
        elif self._consecutive < CONSECUTIVE and not self._rate_exceeded():
            return
        self._tripped = True
        self._probe_at_s = None
        self._open_until_s = max(self._open_until_s, now_s + self._cooldown_s)

    def abandoned(self) -> None:
        """The call ended without saying anything about the route (the caller left): a probe is free again."""
        self._probe_at_s = None

    def _note(self, bit: int) -> None:
        self._history = (self._history << 1 | bit) & ((1 << WINDOW) - 1)
        self._seen = min(self._seen + 1, WINDOW)

    def _rate_exceeded(self) -> bool:
        return self._seen >= WINDOW and self._history.bit_count() >= RATE * WINDOW
