"""The gateway's side of its recorder: a process of its own that is started, listened to, started again when it dies or falls
silent, and ended.

Everything that matters between the two is in the journal's files; the socket carries orders one way, progress and figures
the other. Why a process, and what it costs: docs/decisions/0006-recorder-process.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from pathlib import Path
from typing import Final, Protocol

from gateway import logs
from gateway.child import BEAT_S, Child, child
from gateway.metering.journal import Journal
from gateway.metering.link import Ask, Finish, Job, News, read_news
from gateway.metering.position import read_position
from gateway.metering.progress import Progress
from gateway.metering.segments import is_given_up, process_folders
from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from gateway.telemetry.target import Target

log = logging.getLogger(__name__)

COMMAND: Final[list[str]] = [sys.executable, "-m", "gateway.metering.recording"]
DRAIN_S: Final = 10.0
END_S: Final = 5.0
"""So long after its drain a recorder may take to end; then it is killed, and whoever starts next ships the rest."""
ANSWER_S: Final = 0.5
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 10.0
STEADY_S: Final = 60.0
SOURCE: Final = "recorder"


class Recording(Protocol):
    """What a gateway needs of its recorder."""

    def start(self) -> None: ...
    async def stop(self, drain_s: float = DRAIN_S) -> bool: ...
    async def refresh(self) -> None: ...

    @property
    def inheriting(self) -> bool: ...
    @property
    def progress(self) -> Progress: ...


class RecorderProcess:
    """Keeps one recorder running over `journal` and over what dead processes left beside it."""

    def __init__(
        self,
        journal: Journal,
        root: Path,
        database_url: str,
        settings: JournalSettings,
        metrics: Metrics,
        telemetry: Target | None = None,
        log_format: logs.Format = "text",
        beat_s: float = BEAT_S,
    ) -> None:
        """What the recorder counts is added to `metrics`; `telemetry` is where it tells of new rows. One that runs and does
        nothing is ended: its transaction is rolled back, and the next reads on from the last position that it stored."""
        self._journal = journal
        self._job = Job(
            str(root), str(journal.folder), database_url, settings, logging.root.level, log_format, telemetry
        )
        self._metrics = metrics
        self._beat_s = beat_s
        self._task: asyncio.Task[None] | None = None
        self._child: Child[News] | None = None
        self._heard = asyncio.Event()
        self._drain_s: float | None = None
        self._finished = False
        self.progress = Progress(inheriting=_others_left(root, journal.folder), current_at_s=time.monotonic())
        self.restarts = 0

    @property
    def inheriting(self) -> bool:
        """Whether the database may still lack what dead processes settled."""
        return self.progress.inheriting

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Returns at once. The database may be away: that is only a delay."""
        assert self._task is None
        self._task = asyncio.create_task(self._keep_running(), name="recorder")

    async def stop(self, drain_s: float = DRAIN_S) -> bool:
        """Stop the journal before. Has what it holds shipped, for `drain_s` at most, and ends the process; whether all of it was.

        What was not stays in the journal and is adopted by whoever starts next.
        """
        if self._task is None:
            return True
        self._drain_s = drain_s
        if self._child is not None:
            self._child.link.send(Finish(drain_s))
        try:
            async with asyncio.timeout(drain_s + END_S):
                await self._task
        except TimeoutError:
            log.warning("the recorder did not end in time; what it has not shipped is shipped by whoever starts next")
        self._task = None
        return self._finished

    async def refresh(self) -> None:
        """Returns when progress and figures are those of now, or the recorder does not answer."""
        if self._child is None:
            return
        self._heard.clear()
        self._child.link.send(Ask())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._heard.wait()

    async def _keep_running(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            began_s = time.monotonic()
            try:
                status = await self._run_once()
            except OSError as error:
                log.error("the recorder cannot be started (%s); trying again", error)
            else:
                if self._drain_s is not None:
                    return
                log.error("the recorder ended with status %d; starting it again", status)
            if time.monotonic() - began_s > STEADY_S:
                backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)
            self.restarts += 1
            self._metrics.recorder_restarts.inc()

    async def _run_once(self) -> int:
        """One life of the process: its exit status."""
        async with child("the recorder", COMMAND, read_news, Ask(), beat_s=self._beat_s) as recorder:
            recorder.link.send(self._job)
            self._child = recorder
            if self._drain_s is not None:  # asked to stop while it was starting
                recorder.link.send(Finish(self._drain_s))
            try:
                async for news in recorder.news():
                    self._hear(news)
                return await recorder.ended()
            finally:
                self._child = None

    def _hear(self, news: News) -> None:
        if news.progress is not None:
            self.progress = news.progress
        self._metrics.others.add(SOURCE, news.report)
        if news.finished is not None:
            self._finished = news.finished
        self._heard.set()


def _others_left(root: Path, own: Path) -> bool:
    """Whether any other process's journal is not shipped to its end. Its owner may live; the recorder finds out."""
    others = [folder for folder in process_folders(root) if folder != own and not is_given_up(folder)]
    return any(read_position(folder).complete_us is None for folder in others)
