"""One ticker for every running request: departures, stalls and keep-alive cost a running request nothing per event.

Requests note the coarse time when they begin to wait; the ticker looks at all of them ten times a second.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

TICK_S: Final = 0.1
MOST_STEP_S: Final = 0.3
"""A loop that stood still for longer did not hear its providers meanwhile, and holds that time against none of them."""

logger = logging.getLogger(__name__)


class Watched(Protocol):
    def tick(self, now_s: float) -> None: ...


class Watch:
    """`now_s` is the time that this loop has been awake, as of the last tick: good to `TICK_S`, and free to read."""

    def __init__(self) -> None:
        self.running: set[Watched] = set()
        self.now_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.now_s = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._run(), name="request watch")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            before_s, last_s = last_s, loop.time()
            self.now_s += min(last_s - before_s, MOST_STEP_S)
            for each in tuple(self.running):
                try:
                    each.tick(self.now_s)
                except Exception:
                    logger.exception("the watch over a request failed")
