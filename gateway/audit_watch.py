"""The audit log's chain of hashes, checked without being asked: what is new every few minutes, all of it at the start and daily.

Each process looks by itself, some entries at a time with pauses between, and holds nothing meanwhile. It remembers where the log
ended: one that was cut off together with its head, or written anew from its beginning, does not go on from there.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import reading
from gateway.admin.audit import Chain, ended, follow, read_head
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

EVERY_S: Final = 300.0
WHOLE_S: Final = 86_400.0
BATCH: Final = 50
PAUSE_S: Final = 0.2
"""Between two batches, of which each holds requests up for a millisecond or two: a log of a million entries takes an hour and a
hundredth of a core."""


class AuditWatch:
    """`start` and `stop` once each. `once` looks now."""

    def __init__(
        self,
        database: AsyncEngine,
        metrics: Metrics,
        *,
        every_s: float = EVERY_S,
        whole_s: float = WHOLE_S,
        batch: int = BATCH,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._every_s = every_s
        self._whole_s = whole_s
        self._batch = batch
        self._pause_s = pause_s
        self._chain = Chain()
        self._whole_due_s = time.monotonic() + whole_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._for_ever(), name="audit log")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def once(self) -> Chain:
        """Reads on from the last good entry and, where that is due, from the first; tells what it found."""
        chain = await self._read_on(Chain(self._chain.entries, self._chain.hash))
        if chain.broken is None and time.monotonic() >= self._whole_due_s:
            chain = await self._read_on(Chain())
            self._whole_due_s = time.monotonic() + self._whole_s
        if chain.broken is not None and chain.broken != self._chain.broken:
            log.error("the audit log is not what was written: %s", chain.broken)
        self._chain = chain
        self._metrics.audit_chain_broken.set(0.0 if chain.broken is None else 1.0)
        return chain

    async def _read_on(self, chain: Chain) -> Chain:
        async with reading(self._database) as connection:
            head = await read_head(connection)
        while chain.broken is None and chain.entries < head.sequence:
            async with reading(self._database) as connection:
                chain = await follow(connection, chain, head, self._batch)
            await asyncio.sleep(self._pause_s)
        return ended(chain, head)

    async def _for_ever(self) -> None:
        while True:
            try:
                await self.once()
            except Exception as error:  # a database that is away is looked at next time
                log.warning("the audit log was not checked this time: %s: %s", type(error).__name__, error)
            await asyncio.sleep(self._every_s * random.uniform(0.75, 1.25))
