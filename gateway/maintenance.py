"""What the database needs from time to time: rollups folded, partitions of the coming months, and old usage rows gone.

One task per process. Replicas do not agree on who does it: folding and making partitions take a lock, and two that delete the
oldest rows at once delete different numbers of the same ones. Every step is a short transaction; a failure waits for the next
round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.folding import fold
from billing.partitions import ensure_partitions
from billing.retention import delete_usage_before, drop_empty_partitions
from billing.times import DAY_US, now_us, quarter_of
from gateway.settings import RetentionSettings

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
FOLD_EVERY_S: Final = 60.0
PAUSE_S: Final = 0.05
"""Between two chunks, so that whoever waits for the writer's place gets it."""


@dataclass(slots=True)
class Maintenance:
    """`start` and `stop` once each. `rounds` counts the finished ones, `deleted` the usage rows that went, `folds` the steps."""

    database: AsyncEngine
    retention: RetentionSettings
    every_s: float = EVERY_S
    fold_every_s: float = FOLD_EVERY_S
    rounds: int = 0
    deleted: int = 0
    folds: int = 0
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="maintenance")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            await self._attempt(self.fold)
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + self.every_s
                await self._attempt(self.round)
            await asyncio.sleep(self.fold_every_s)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            log.warning("maintenance waits for its next round: %s: %s", type(error).__name__, error)

    async def fold(self) -> None:
        """The quarter-hours that are over, into the coarse rollups; after an upgrade all there are, an hour a step."""
        more = True
        while more:
            async with self.database.begin() as connection:
                more = await fold(connection, now_us())
            self.folds += 1
            await asyncio.sleep(PAUSE_S if more else 0)

    async def round(self) -> None:
        """Partitions and retention: everything that is due now."""
        async with self.database.begin() as connection:
            for name in await ensure_partitions(connection, now_us()):
                log.info("partition %s is made", name)
        if self.retention.usage_days is not None:
            await self._let_go(quarter_of(now_us() - self.retention.usage_days * DAY_US))  # whole rollup cells
        self.rounds += 1

    async def _let_go(self, before_us: int) -> None:
        gone = 0
        while True:
            async with self.database.begin() as connection:
                chunk = await delete_usage_before(connection, before_us)
            if chunk == 0:
                break
            gone += chunk
            self.deleted += chunk
            await asyncio.sleep(PAUSE_S)
        async with self.database.begin() as connection:
            dropped = await drop_empty_partitions(connection, before_us)
        if gone or dropped:
            log.info("%d usage rows older than retention.usage_days are gone, and %d partitions", gone, len(dropped))
