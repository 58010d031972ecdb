"""How soon a route begins to answer, as of now: a mean that decays, on a clock that the caller passes in."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

TAU_S: Final = 10.0
"""The mean follows a change within about this time."""
LEAST_WEIGHT: Final = 0.1
"""Of each new sample, however closely it follows the last one."""
HALF_S: Final = 60.0
"""What is not measured is forgotten: after so long without a call a slow route looks half as slow, so it is tried again."""
SAMPLES: Final = 128
"""The last ones, of which a percentile is taken."""
ENOUGH: Final = 20
"""Fewer samples have no 95th percentile worth waiting for."""


class Pace:
    """Times to the first content of an answer, in seconds; of a whole answer to all of it."""

    __slots__ = ("_asked_at_s", "_at_s", "_mean_s", "_samples")

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._at_s = 0.0
        self._asked_at_s = 0.0
        self._samples: deque[float] = deque(maxlen=SAMPLES)

    @property
    def mean_s(self) -> float | None:
        """None until the first answer."""
        return self._mean_s

    def asked(self, now_s: float) -> None:
        """A call goes out: what was forgotten of this route is not acted on again before it has answered, or for `HALF_S`."""
        self._asked_at_s = now_s

    def answered(self, now_s: float, took_s: float) -> None:
        self._samples.append(took_s)
        self._learn(now_s, took_s)

    def outrun(self, now_s: float, waited_s: float) -> None:
        """An answer that was not waited for: it would have taken longer than `waited_s`."""
        if self._mean_s is None or waited_s > self._mean_s:
            self._learn(now_s, waited_s)

    def _learn(self, now_s: float, took_s: float) -> None:
        if self._mean_s is None:
            self._mean_s = took_s
        else:
            weight = max(LEAST_WEIGHT, 1.0 - math.exp((self._at_s - now_s) / TAU_S))
            self._mean_s += weight * (took_s - self._mean_s)
        self._at_s = self._asked_at_s = now_s

    def expected_s(self, now_s: float, *, asking: bool) -> float:
        """What a call may expect now. An unknown route is worth a try (0) unless one is under way (`asking`)."""
        if self._mean_s is None:
            return math.inf if asking else 0.0
        return self._mean_s * math.exp2((self._asked_at_s - now_s) / HALF_S)

    def percentile_s(self, share: float) -> float | None:
        """The time within which `share` of the last answers began; None while there were too few."""
        if len(self._samples) < ENOUGH:
            return None
        ordered = sorted(self._samples)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
