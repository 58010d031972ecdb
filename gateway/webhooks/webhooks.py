"""Tells the world of what happened: each event once, however many processes have seen it.

`tell` is all that others call. An event is written down under its key first; who wrote it is the one to log and count it, and
from then on it is the database's: any process sends it when it is due, one at a time, until the receiver has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.database import reading
from billing.times import now_us
from gateway.metrics import Metrics
from gateway.webhooks import outbox
from gateway.webhooks.outbox import Event, Pending
from gateway.webhooks.sender import Sender, Undelivered

logger = logging.getLogger(__name__)

ROUND_S: Final = 2.0
DATABASE_S: Final = 10.0
STOP_S: Final = 3.0
MOST_HELD: Final = 10_000
"""So many events are held in memory while the database is away; more of them are dropped, and counted."""
WRITTEN_PER_ROUND: Final = 200
SENT_AT_ONCE: Final = 10
FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 3600.0
MOST_ATTEMPTS: Final = 30
"""With pauses of 5 s, 10 s, .. 1 h: about a day, and then the event is given up."""
FORGOTTEN_PER_ROUND: Final = 5000
FORGET_EVERY_S: Final = 600.0

First = Callable[[], None]


class Webhooks:
    """Without a `sender` events are still each told once to whoever logs and counts them."""

    def __init__(
        self, database: AsyncEngine, metrics: Metrics, sender: Sender | None = None, *, round_s: float = ROUND_S
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._sender = sender
        self._round_s = round_s
        self._held: dict[str, tuple[Event, First]] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._forgot_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: Event, first: First = lambda: None) -> bool:
        """Have it written down and sent; False when too many wait already. `first` is called if nobody had told of it before.

        Never waits and never raises: what cannot be written now is tried again for as long as this process lives.
        """
        if event.key not in self._held:
            if len(self._held) >= MOST_HELD:
                self._metrics.webhooks.labels("dropped").inc()
                return False
            self._held[event.key] = event, first
        self._wake.set()
        return True

    def start(self) -> None:
        self._task = asyncio.create_task(self._rounds(), name="webhooks")

    async def stop(self) -> None:
        """Give the tries under way a moment, and write down what is held."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping = True
            self._wake.set()
            await asyncio.wait({task}, timeout=STOP_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._sender is not None:
            await self._sender.aclose()

    async def _rounds(self) -> None:
        while True:
            stopping = self._stopping
            self._wake.clear()
            try:
                await self.round()
            except Exception as error:  # the database is away: the next round does what this one could not
                logger.debug("events wait: %s: %s", type(error).__name__, error)
            if stopping:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._round_s)

    async def round(self) -> None:
        """Write down what is held, and try everything that is due."""
        while self._held:
            await self._write()
        while not self._stopping and self._sender is not None and (events := await self._due()):
            async with asyncio.TaskGroup() as tries:
                for event in events:
                    tries.create_task(self._try(self._sender, event))
        if time.monotonic() - self._forgot_s > FORGET_EVERY_S:
            self._forgot_s = time.monotonic()
            async with self._transaction() as connection:
                await outbox.forget(connection, now_us(), FORGOTTEN_PER_ROUND)

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with asyncio.timeout(DATABASE_S), self._database.begin() as connection:
            yield connection

    async def _due(self) -> list[Pending]:
        async with asyncio.timeout(DATABASE_S), reading(self._database) as connection:
            self._metrics.webhooks_pending.set(await outbox.pending(connection))
            return await outbox.due(connection, now_us(), SENT_AT_ONCE)

    async def _write(self) -> None:
        held = list(self._held.values())[:WRITTEN_PER_ROUND]
        events = [event for event, _ in held]
        async with self._transaction() as connection:
            new = await outbox.enqueue(connection, events, now_us(), send=self._sender is not None)
        for event, first in held:
            self._held.pop(event.key, None)
            if event.key in new:
                first()

    async def _try(self, sender: Sender, event: Pending) -> None:
        async with self._transaction() as connection:
            if not await outbox.claim(connection, event, now_us()):
                return
        trouble: str | None = None
        try:
            await sender.send(event)
        except Undelivered as error:
            trouble = str(error)
        next_at_us = None if event.attempts + 1 >= MOST_ATTEMPTS else now_us() + round(pause_s(event.attempts) * 1e6)
        async with self._transaction() as connection:
            if trouble is None:
                await outbox.delivered(connection, event.key, now_us())
            else:
                await outbox.failed(connection, event.key, trouble, next_at_us)
        self._metrics.webhooks.labels("delivered" if trouble is None else "failed").inc()
        if trouble is not None and next_at_us is None:
            self._metrics.webhooks.labels("given_up").inc()
            logger.error("event %s was not taken in %d tries and is given up: %s", event.key, MOST_ATTEMPTS, trouble)
        elif trouble is not None:
            logger.warning("event %s was not taken and is tried again: %s", event.key, trouble)


def pause_s(attempts: int) -> float:
    """How long to wait after so many failures before this one, jittered by a fifth."""
    longest: float = min(FIRST_PAUSE_S * 2**attempts, LONGEST_PAUSE_S)
    return longest * random.uniform(0.8, 1.2)
