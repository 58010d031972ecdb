"""The reconciliation job: once an hour, derived figures against their rows, in metrics, in the log, and put right.

The limit store is not looked at here: admission brings it in line with the database every second, and leases expire by
themselves (gateway/admission). Rows, lines, attempts and payments are never changed; what differs there is only reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.coarse import COARSE
from billing.database import reading
from billing.drift import Drift, find_drift, repair_balance, repair_rollups
from billing.errors import NotFound
from billing.folding import refold
from gateway.metrics import Metrics

log = logging.getLogger(__name__)

EVERY_S: Final = 3600.0
LOOK_BACK_HOURS: Final = 48
"""As far as journals are kept by default: nothing older is written to any more."""
HOUR_US: Final = 3_600_000_000
ROLLUPS: Final = ("rollup_traffic", "rollup_money")
COARSE_ROLLUPS: Final = tuple(coarse.table.name for coarse in COARSE)
TABLES: Final = (*ROLLUPS, *COARSE_ROLLUPS, "wallet_entries", "wallets")
LOGGED: Final = 20


async def look(database: AsyncEngine, hours: int = LOOK_BACK_HOURS) -> list[Drift]:
    """What differs in the last `hours`, in one snapshot. Changes nothing."""
    now_us = time.time_ns() // 1000
    async with reading(database) as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        return await find_drift(connection, now_us - hours * HOUR_US, now_us + HOUR_US)


async def repair(database: AsyncEngine, drifts: list[Drift]) -> int:
    """Makes again what is derived, each quarter-hour and each balance in a transaction of its own; how many there were."""
    done = 0
    for bucket_us in _buckets(drifts, ROLLUPS):
        try:
            async with database.begin() as connection:
                await repair_rollups(connection, bucket_us)
        except NotFound as error:
            log.error("not repaired: %s", error)
        else:
            done += 1
    for bucket_us in _buckets(drifts, COARSE_ROLLUPS):
        async with database.begin() as connection:
            await refold(connection, bucket_us)
        done += 1
    for each in drifts:
        if each.what == "wallets":
            team_id, currency = each.where.split()
            async with database.begin() as connection:
                await repair_balance(connection, team_id, currency)
            done += 1
    return done


def _buckets(drifts: list[Drift], tables: tuple[str, ...]) -> list[int]:
    return sorted({each.bucket_us for each in drifts if each.what in tables and each.bucket_us is not None})


class Reconciliation:
    """The hourly job of one gateway process. Two processes that do it at once do no harm."""

    def __init__(self, database: AsyncEngine, metrics: Metrics, *, every_s: float = EVERY_S) -> None:
        self._database = database
        self._metrics = metrics
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._for_ever(), name="reconciliation")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def once(self) -> list[Drift]:
        """Looks, reports and repairs; what was found."""
        found = await look(self._database)
        for table in TABLES:
            self._metrics.drift.labels(table).set(sum(each.what == table for each in found))
        for each in found[:LOGGED]:
            log.error("drift: %s", each)
        if found:
            self._metrics.drift_repaired.inc(await repair(self._database, found))
        return found

    async def _for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s * random.uniform(0.75, 1.25))
            try:
                await self.once()
            except Exception as error:  # a database that is away is looked at in an hour
                log.warning("no reconciliation this time: %s: %s", type(error).__name__, error)
