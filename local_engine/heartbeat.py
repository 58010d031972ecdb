"""Whether the core is alive: its pulse, and the watch that the HTTP process keeps over it.

The pulse is a thread of the core, so it goes on during a long step and stops when the process does (SIGSTOP, a machine
that swaps). It carries how long the step in progress has taken, so that a step that never ends is seen too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BEAT_EVERY_S = 0.5
SILENT_AFTER_S = 4.0
"""Unheard for so long, the core counts as unresponsive: /health says 503 and new requests are refused."""
STEP_LIMIT_S = 600.0
"""A step that takes so long will not end: a lost device, a deadlock."""


class Pulse:
    """The core's side. `beat(step_ms)` sends; it runs in a thread of its own until it raises OSError."""

    def __init__(self, beat: Callable[[int], None]) -> None:
        self._beat = beat
        self._step_began_s: float | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def step_begins(self) -> None:
        self._step_began_s = time.monotonic()

    def step_ends(self) -> None:
        self._step_began_s = None

    def _run(self) -> None:
        try:
            while True:
                began_s = self._step_began_s
                self._beat(0 if began_s is None else int((time.monotonic() - began_s) * 1_000))
                time.sleep(BEAT_EVERY_S)
        except OSError:
            return  # the HTTP process is gone, and so are we in a moment


class CoreWatch:
    """The HTTP process's side. `heard` at every frame of the core, `tick` every `BEAT_EVERY_S`.

    Silence is counted in ticks and not by the clock: when this process itself stood still (a suspended machine), what the core
    has sent meanwhile is read before the next tick.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._silent_ticks = 0
        self._step_s = 0.0

    def heard(self, step_ms: int = 0) -> None:
        self._silent_ticks = 0
        self._step_s = step_ms / 1_000

    def tick(self) -> None:
        self._silent_ticks += 1

    @property
    def silent_s(self) -> float:
        return self._silent_ticks * BEAT_EVERY_S

    @property
    def trouble(self) -> str | None:
        """Why new requests should go elsewhere; None when all is well."""
        if self.silent_s >= SILENT_AFTER_S:
            return f"The engine core has not answered for {self.silent_s:.0f} s."
        return None

    @property
    def lost(self) -> str | None:
        """Why requests in flight are given up; None while there is hope."""
        if self.silent_s >= self._timeout_s:
            return f"The engine core has not answered for {self.silent_s:.0f} s (--core-timeout-seconds) and was ended."
        if self._step_s >= STEP_LIMIT_S:
            return f"The engine core was ended: one step had taken {self._step_s:.0f} s."
        return None
