"""The parent of several workers: starts them, starts again what dies or hangs, passes signals on, and adds up what they count.

It serves nobody and imports little. All workers accept on the sockets that it opened, so while one is down the others have its
callers. Engines run once, under it. A worker lives no longer than the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from gateway import logs
from gateway.access.admin_key import load_admin_key
from gateway.access.pepper import load_pepper
from gateway.child import BEAT_S, Child, child
from gateway.metrics_sum import MetricsSum, Report, Sample
from gateway.serve.banner import FirstRun, banner
from gateway.serve.engines import Engines
from gateway.serve.errors import StartError
from gateway.serve.fleet_link import Ask, Counted, EngineAt, News, Scrape, Serving, Stop, Total, Work, read_news
from gateway.serve.reload import SettingsWatch
from gateway.serve.sockets import address_of, on_signals
from gateway.settings import Settings

log = logging.getLogger(__name__)

ENGINES_S: Final = 300
"""The banner waits this long for engines to load before it comes without them."""
COUNT_S: Final = 1.0
"""A scrape waits this long for every worker's figures; one that does not answer counts with its last."""
END_S: Final = 30.0
"""Beyond the grace of running requests, a worker has this long to ship its journal and end."""
FAIRNESS: Final = {"UV_TCP_SINGLE_ACCEPT": "1"}
"""Has libuv leave the next connection to another worker after each one that it accepts: without it one takes a whole burst."""
COMMAND: Final = (sys.executable, "-m", "gateway.serve.worker")
ENGINE_RESTARTS: Final = "metergate_engine_restarts"
WORKER_RESTARTS: Final = "metergate_worker_restarts"
BACKOFF_FIRST_S: Final = 0.2
BACKOFF_LAST_S: Final = 10.0
STEADY_S: Final = 60.0


class Worker:
    """Keeps one worker running until told to stop."""

    def __init__(self, number: int, fleet: Fleet) -> None:
        self.name = f"worker {number}"
        self.serving = asyncio.Event()
        """Set once it has served, and for good."""
        self.answers = False
        self.counted = asyncio.Event()
        self.restarts = 0
        self._fleet = fleet
        self._child: Child[News] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def send(self, message: EngineAt | Ask | Total | Stop) -> bool:
        """Whether there is somebody to hear it."""
        if self._child is not None:
            self._child.link.send(message)
        return self._child is not None

    def signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.signal(number)

    async def keep_running(self) -> None:
        """Raises `StartError` when it ends before it has served at all."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            began_s = time.monotonic()
            status = await self._run_once()
            if not self.serving.is_set() and not self._fleet.stopping:
                raise StartError(f"{self.name} ended at its start with status {status}; what it said is above")
            if time.monotonic() - began_s > STEADY_S:
                backoff_s = BACKOFF_FIRST_S
            if await self._fleet.stops_within(backoff_s):
                return
            log.error("%s ended with status %d; starting it again", self.name, status)
            backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)
            self.restarts += 1
            self._fleet.count("workers", WORKER_RESTARTS)

    async def _run_once(self) -> int:
        """One life of the process: its exit status."""
        fleet = self._fleet
        life = child(
            self.name, COMMAND, read_news, Ask(), beat_s=fleet.beat_s, descriptors=fleet.descriptors,
            environ={**os.environ, **FAIRNESS},
        )  # fmt: skip
        async with life as worker:
            others_serve = any(other.answers for other in fleet.workers if other is not self)
            worker.link.send(Work(fleet.config, fleet.descriptors, others_serve))
            self._child = worker
            for engine in fleet.engine_news.values():
                worker.link.send(engine)
            if fleet.stopping:
                worker.link.send(Stop())
            try:
                async for news in worker.news():
                    self._hear(news)
                return await worker.ended()
            finally:
                self._child = None
                self.answers = False
                fleet.figures.leave(self.name)
                self.counted.set()

    def _hear(self, news: News) -> None:
        match news:
            case Serving():
                self.serving.set()
                self.answers = True
            case Counted():
                self._fleet.figures.add(self.name, news.report)
                self.counted.set()
            case Scrape():
                self._fleet.count_for(self)


class Fleet:
    """The workers and what they have in common."""

    def __init__(
        self, config: Path | None, listeners: Sequence[socket.socket], workers: int, beat_s: float = BEAT_S
    ) -> None:
        self.config = None if config is None else str(config)
        self.descriptors = [listener.fileno() for listener in listeners]
        self.address = address_of(listeners[0])
        self.beat_s = beat_s
        self.figures = MetricsSum()
        self.engine_news: dict[str, EngineAt] = {}
        self.workers = [Worker(number, self) for number in range(1, workers + 1)]
        self.stopping = False
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, grace_s: float) -> None:
        """Until `stop`, or a worker's failed start. `grace_s` is what running requests get at the end.

        A worker that has not ended long after it was asked to is killed; its journal is adopted by whoever starts next.
        """
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(worker.keep_running(), name=worker.name) for worker in self.workers]
            await self._stopped.wait()
            await asyncio.wait(running, timeout=grace_s + END_S)
            self.pass_on(signal.SIGKILL)

    async def all_serving(self) -> None:
        for worker in self.workers:
            await worker.serving.wait()

    def stop(self) -> None:
        """Asked twice, running requests are cut."""
        self.stopping = True
        self._stopped.set()
        for worker in self.workers:
            worker.send(Stop())

    def pass_on(self, number: signal.Signals) -> None:
        for worker in self.workers:
            worker.signal(number)

    def follow(self, provider: str, base_url: str | None, secret: str) -> None:
        """Tells every worker, and whoever is started later, where a provider's engine is."""
        news = self.engine_news[provider] = EngineAt(provider, base_url, secret)
        for worker in self.workers:
            worker.send(news)

    def count(self, source: str, counter: str, *labels: tuple[str, str]) -> None:
        """One more of what only this process sees."""
        self.figures.add(source, Report([Sample(counter, f"{counter}_total", labels, 1.0)], []))

    def count_for(self, asker: Worker) -> None:
        task = asyncio.create_task(self._count_for(asker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        return self.stopping

    async def _count_for(self, asker: Worker) -> None:
        asked = []
        for worker in self.workers:
            worker.counted.clear()
            if worker.send(Ask()):
                asked.append(worker)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COUNT_S):
                for worker in asked:
                    await worker.counted.wait()
        asker.send(Total(self.figures.total()))


async def run_fleet(settings: Settings, config: Path | None, listeners: Sequence[socket.socket], workers: int) -> None:
    """Serves with so many workers until SIGTERM or SIGINT. Raises `StartError`, `SettingsError`."""
    fleet = Fleet(config, listeners, workers)
    engines = Engines(settings.home / "run", logs.teller(settings.log_format))
    on_signals(fleet.stop, signal.SIGTERM, signal.SIGINT)
    load_pepper(settings)  # made here, once, where there is none
    admin_key = load_admin_key(settings)
    first = FirstRun(admin_key.secret.reveal() if admin_key.created else None, None)
    tasks = []
    try:
        await engines.apply(settings)
        engines.attach(fleet.follow, lambda name: fleet.count("engines", ENGINE_RESTARTS, ("provider", name)))
        watch = SettingsWatch(config, settings, engines.apply, lambda: fleet.pass_on(signal.SIGHUP))
        tasks.append(asyncio.create_task(watch.run(), name="settings"))
        tasks.append(asyncio.create_task(_welcome(settings, fleet, engines, first), name="welcome"))
        await fleet.run(settings.shutdown_grace_s)
    except* StartError as failed:
        raise failed.exceptions[0] from None
    finally:
        for task in tasks:
            task.cancel()
        await engines.stop()


async def _welcome(settings: Settings, fleet: Fleet, engines: Engines, first: FirstRun) -> None:
    """The banner, when every worker serves and the engines are up."""
    await fleet.all_serving()
    ready = await engines.settled(ENGINES_S)
    click.echo(banner(fleet.address, settings, first, engines_ready=ready))
