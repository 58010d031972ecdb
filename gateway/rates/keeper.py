"""Keeps market rates coming: each configured feed is fetched from time to time, and its file taken whole or refused.

Every replica does the same rounds; whoever comes second finds the rates in the books. A feed that fails changes nothing: the last
published rate stays in force up to its stated age, and the metrics tell how old it is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing import ecb
from billing.database import reading
from billing.errors import InvalidRate
from billing.rate_feed import FeedRate, FeedResult, newest_of, parse_feed, take_rates
from billing.times import SECOND_US, now_us
from gateway.metrics import RATE_FETCHES, Metrics
from gateway.rates.fetch import FetchError, fetch
from gateway.settings import RateFeedSettings, RateSettings

logger = logging.getLogger(__name__)

FIRST_S: Final = 5.0
"""After a start; a process that is restarted again and again does not ask more often than it lives."""


class RatesRefused(Exception):
    """A feed's file was not taken. `failed`: it was not even had."""

    def __init__(self, message: str, *, failed: bool = False) -> None:
        super().__init__(message)
        self.failed = failed


def source_of(feed: RateFeedSettings) -> str:
    """What stands beside a feed's rates in the books: the bank's name for the bank's own, however they came."""
    return ecb.SOURCE if feed.format == "ecb" else f"feed {feed.name}"


async def read_feed(feed: RateFeedSettings) -> list[FeedRate]:
    """What a feed says now. Raises `RatesRefused`."""
    try:
        return await asyncio.to_thread(parse_feed, feed.format, await fetch(feed))
    except FetchError as error:
        raise RatesRefused(f"{feed.name}: {error}", failed=True) from error
    except InvalidRate as error:
        raise RatesRefused(f"{feed.name}: {error}") from error


async def take_feed(connection: AsyncConnection, feed: RateFeedSettings, rates: Sequence[FeedRate]) -> FeedResult:
    """Record what is new of it. Raises `RatesRefused`, and has then written nothing."""
    try:
        return await take_rates(
            connection,
            rates,
            source=source_of(feed),
            max_step_percent=feed.max_step_percent,
            currencies=feed.currencies,
        )
    except InvalidRate as error:
        raise RatesRefused(f"{feed.name}: {error}") from error


class RateKeeper:
    """`start` and `stop` once each; without feeds there is nothing to do."""

    def __init__(
        self, database: AsyncEngine, metrics: Metrics, settings: RateSettings, *, first_s: float = FIRST_S
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._settings = settings
        self._first_s = first_s
        self._newest: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        for feed in settings.feeds:
            metrics.watch(metrics.rate_age.labels(feed.name), self._age_of(feed.name))
            for result in RATE_FETCHES:
                metrics.rate_fetches.labels(feed.name, result)

    def start(self) -> None:
        assert self._task is None
        if self._settings.feeds:
            self._task = asyncio.create_task(self._rounds(), name="rate feeds")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _rounds(self) -> None:
        pause_s = self._first_s
        while True:
            await asyncio.sleep(pause_s)
            await self.round()
            pause_s = self._settings.every_s

    async def round(self) -> None:
        """Every feed once. Never raises: what goes wrong is logged and counted, and changes nothing."""
        for feed in self._settings.feeds:
            try:
                rates = await read_feed(feed)
                async with self._database.begin() as connection:
                    found = await take_feed(connection, feed, rates)
                self._count(feed.name, "taken" if found.added else "unchanged")
                if found.added:
                    logger.info("rate feed %s: %d new rates, %d known", feed.name, found.added, found.known)
            except RatesRefused as error:
                self._count(feed.name, "failed" if error.failed else "refused")
                logger.warning("rate feed %s", error)
            except Exception as error:  # the database is away
                self._count(feed.name, "failed")
                logger.warning("rate feed %s waits for its next round: %s", feed.name, type(error).__name__)
            await self._look(feed)

    def _count(self, name: str, result: str) -> None:
        self._metrics.rate_fetches.labels(name, result).inc()

    async def _look(self, feed: RateFeedSettings) -> None:
        try:
            async with reading(self._database) as connection:
                newest_us = await newest_of(connection, source_of(feed))
        except Exception as error:
            logger.debug("rate feed %s: its age is not known: %s", feed.name, type(error).__name__)
            return
        if newest_us is not None:
            self._newest[feed.name] = newest_us

    def _age_of(self, name: str) -> Callable[[], float]:
        """Seconds since the newest rate was published; infinite while none is known."""
        return lambda: (now_us() - self._newest[name]) / SECOND_US if name in self._newest else math.inf
