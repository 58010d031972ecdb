"""One of several workers: `python -m gateway.serve.worker DESCRIPTOR`, started by `fleet.py` only.

A whole gateway with a journal and a recorder of its own. What there is once for all workers (the sockets, the engines, the
figures of all) is its parent's, which it hears of over the socket `DESCRIPTOR`; when that is gone, it ends at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from gateway import logs
from gateway.allocator import use_one_arena
from gateway.metering.errors import JournalError
from gateway.metrics_sum import MetricsSum, Report, Reporter
from gateway.process_link import Link, open_link
from gateway.serve.answering import Ending, answer_requests, prepare_database
from gateway.serve.errors import StartError
from gateway.serve.fleet_link import Ask, Counted, EngineAt, Order, Scrape, Serving, Stop, Total, Work, read_order
from gateway.serve.reload import SettingsWatch
from gateway.serve.waiting import PATIENCE_S, once_there
from gateway.services import Services, build_services
from gateway.settings import Settings, SettingsError, load_settings

ANSWER_S: Final = 2.0
READY_S: Final = 10.0
COUNTED_S: Final = 1.0
"""Figures are told this often, so that a worker that is killed takes no more of them with it."""


class Parent:
    """The worker's view of its parent."""

    def __init__(self, link: Link[Order], ending: Ending) -> None:
        self._link = link
        self._ending = ending
        self._engines: dict[str, EngineAt] = {}
        self._services: Services | None = None
        self._reporter: Reporter | None = None
        self._totals: list[asyncio.Future[Report]] = []

    def attach(self, services: Services) -> None:
        self._services = services
        self._reporter = Reporter(services.metrics.collect, gauges=True)
        services.exposition = self.exposition
        self._follow_all()

    def serving(self) -> None:
        self._link.send(Serving())

    async def take(self, fresh: Settings) -> None:
        """New settings; engines that came before their provider are told to it now."""
        assert self._services is not None
        self._services.router.reload(fresh)
        self._follow_all()

    async def obey(self) -> None:
        while (order := await self._link.receive()) is not None:
            match order:
                case EngineAt():
                    self._engines[order.provider] = order
                    self._follow(order)
                case Stop():
                    self._ending.ask()
                case Total():
                    while self._totals:
                        future = self._totals.pop()
                        if not future.done():
                            future.set_result(order.report)
                case Ask():
                    await self._tell()
        os._exit(1)

    async def tell_forever(self) -> None:
        while True:
            await asyncio.sleep(COUNTED_S)
            await self._tell(fresh=False)

    async def exposition(self) -> bytes:
        """The figures of all workers, as any of them tells them."""
        assert self._services is not None
        future: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._totals.append(future)
        self._link.send(Scrape())
        async with asyncio.timeout(ANSWER_S):
            report = await future
        total = MetricsSum()
        total.add("fleet", report)
        return await asyncio.to_thread(self._services.metrics.render_only, total)

    async def _tell(self, *, fresh: bool = True) -> None:
        if self._services is None or self._reporter is None:
            self._link.send(Counted(Report([], [])))
            return
        if fresh:
            await self._services.recorder.refresh()
        self._link.send(Counted(self._reporter.take()))

    async def farewell(self) -> None:
        """The last figures, those of the recorder's end among them."""
        await self._tell(fresh=False)
        await self._link.drain()

    def _follow_all(self) -> None:
        for engine in self._engines.values():
            self._follow(engine)

    def _follow(self, engine: EngineAt) -> None:
        if self._services is not None:
            self._services.router.follow(engine.provider, engine.base_url, engine.secret)


async def _run(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then says what to do
    link = await open_link(socket.socket(fileno=descriptor), read_order)
    work = await link.receive()
    if not isinstance(work, Work):
        return
    ending = Ending(signal.SIGTERM)
    parent = Parent(link, ending)
    obeying = asyncio.create_task(parent.obey(), name="parent")
    config = None if work.config is None else Path(work.config)
    settings = load_settings(config)
    logs.configure(settings.log_level.upper(), settings.log_format)
    listeners = [socket.socket(fileno=each) for each in work.listeners]
    await once_there(listeners, partial(prepare_database, settings), None if work.others_serve else PATIENCE_S)
    services = await build_services(settings)
    parent.attach(services)
    await services.start()
    try:
        telling = asyncio.create_task(parent.tell_forever(), name="figures")
        watch = asyncio.create_task(SettingsWatch(config, settings, parent.take).run(), name="settings")
        try:
            await _ready(services)
            await answer_requests(settings, services, listeners, ending, parent.serving)
        finally:
            for task in (telling, watch):
                task.cancel()
    finally:
        await services.stop()
        await parent.farewell()
    obeying.cancel()


async def _ready(services: Services) -> None:
    """Returns when requests need not be refused: until then the other workers take them. Not for ever: probes want an answer."""
    until_s = time.monotonic() + READY_S
    while services.not_ready() and time.monotonic() < until_s:
        await asyncio.sleep(0.02)


def main(descriptor: int) -> None:
    use_one_arena()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(descriptor))
    except (StartError, SettingsError, JournalError) as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit(0) from None


if __name__ == "__main__":
    main(int(sys.argv[1]))
