"""The process of a gateway's recorder: `python -m gateway.metering.recording DESCRIPTOR`. Started by `process.py` only.

It does what it is told over the socket `DESCRIPTOR` and lives no longer than whoever holds the other end: when that is gone it
ends at once, wherever it is, for the position is never ahead of what is committed. Signals are the gateway's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway import logs
from gateway.allocator import use_one_arena
from gateway.metering.link import Finish, Job, News, Order, read_order
from gateway.metering.progress import Progress
from gateway.metering.recorder import Recorder
from gateway.metrics import Metrics
from gateway.metrics_sum import Reporter
from gateway.process_link import Link, open_link
from gateway.telemetry.target import Target

if TYPE_CHECKING:
    from gateway.telemetry.exporter import Exporter

GC_YOUNG: Final = 100_000
"""A batch makes thousands of tuples and no cycles: looked through at every 700th, they cost a quarter of the recorder's time."""
NICE: Final = 5
NEWS_S: Final = 1.0
"""Progress that moves nothing but the clock, and figures, are told this often."""


FAREWELL_S: Final = 3.0
"""So long the last telemetry may take."""


class _Told:
    """What the gateway has been told, and when there is something new to tell."""

    def __init__(self, link: Link[Order], reporter: Reporter) -> None:
        self._link = link
        self._reporter = reporter
        self._progress: Progress | None = None
        self._told: Progress | None = None
        self._told_at_s = 0.0

    def progress(self, progress: Progress) -> None:
        told, self._progress = self._told, progress
        if told is None:
            self.tell()
            return
        late = time.monotonic() - self._told_at_s > NEWS_S
        moved = (progress.segment, progress.offset) != (told.segment, told.offset)
        if progress.inheriting != told.inheriting or (late and (moved or progress.current_at_s != told.current_at_s)):
            self.tell()

    def tell(self, finished: bool | None = None) -> None:
        self._told, self._told_at_s = self._progress, time.monotonic()
        self._link.send(News(self._progress, self._reporter.take(), finished))


async def _run(descriptor: int) -> None:
    link = await open_link(socket.socket(fileno=descriptor), read_order)
    job = await link.receive()
    if not isinstance(job, Job):
        return
    logs.configure(job.log_level, job.log_format)
    metrics = Metrics()
    told = _Told(link, Reporter(metrics.registry.collect, gauges=False))
    exporter = None if job.telemetry is None else _exporter(job.telemetry, metrics, Path(job.own).name)
    recorder = Recorder(
        Path(job.folder),
        job.database_url,
        job.journal,
        metrics,
        own=Path(job.own),
        tell=told.progress,
        exporter=exporter,
    )
    exporting = None if exporter is None else asyncio.create_task(exporter.run(), name="telemetry")
    orders = asyncio.create_task(_obey(link, recorder, told))
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG, 20, 50)
    finished = await recorder.run()
    told.tell(finished)
    orders.cancel()
    await link.drain()
    if exporter is not None and exporting is not None:
        exporting.cancel()
        await exporter.close(FAREWELL_S)


def _exporter(target: Target, metrics: Metrics, instance: str) -> Exporter:
    from gateway.telemetry.exporter import Exporter  # brings httpx, which nobody else here needs

    return Exporter(target, metrics, instance)


async def _obey(link: Link[Order], recorder: Recorder, told: _Told) -> None:
    while (order := await link.receive()) is not None:
        if isinstance(order, Finish):
            recorder.finish(order.drain_s)
        else:
            told.tell()
    os._exit(1)


def _stand_back() -> None:
    """On a core that is shared, whoever serves callers goes first; a quarter of it stays here, as much as rows need."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICE)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main(descriptor: int) -> None:
    use_one_arena()
    _stand_back()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    logs.configure(logging.WARNING, "text")
    asyncio.run(_run(descriptor))


if __name__ == "__main__":
    main(int(sys.argv[1]))
