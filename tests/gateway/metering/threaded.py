"""A recorder in a thread of the test's process: what the product's process does around it is in `test_process.py`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from gateway.metering.journal import Journal
from gateway.metering.process import DRAIN_S, Recording
from gateway.metering.progress import Lag, Progress, lag, watch_journal
from gateway.metering.recorder import Recorder
from gateway.metrics import Metrics
from gateway.settings import JournalSettings, Settings


class RecorderThread:
    """`start` and `end` may be called from anywhere; `stop` and `refresh` are what a gateway asks for."""

    def __init__(
        self,
        folder: Path,
        url: str,
        settings: JournalSettings,
        metrics: Metrics,
        *,
        journal: Journal | None = None,
        **timing: float,
    ) -> None:
        self.progress = Progress()
        self._journal = journal
        self._recorder = Recorder(
            folder,
            url,
            settings,
            metrics,
            own=None if journal is None else journal.folder,
            tell=self._hear,
            exporter=None,
            **timing,
        )
        if journal is not None:
            watch_journal(metrics, journal, lambda: self.progress)
        self._finished = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="recorder", daemon=True)

    def _hear(self, progress: Progress) -> None:
        self.progress = progress

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running.set()
        self._finished = await self._recorder.run()

    def start(self) -> None:
        self._finished = False
        self._thread.start()

    def end(self, drain_s: float = DRAIN_S) -> bool:
        """Blocks until the recorder has ended; whether everything was shipped."""
        if self._thread.is_alive():
            self._running.wait()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._recorder.finish, drain_s)
            self._thread.join()
        return self._finished

    async def stop(self, drain_s: float = DRAIN_S) -> bool:
        return await asyncio.to_thread(self.end, drain_s)

    async def refresh(self) -> None:
        return None

    @property
    def inheriting(self) -> bool:
        return self.progress.inheriting

    @property
    def lag(self) -> Lag:
        assert self._journal is not None
        return lag(self._journal, self.progress)


def in_a_thread(journal: Journal, folder: Path, settings: Settings, metrics: Metrics) -> Recording:
    """For `build_services`: many gateways in one test run, each without a process for its recorder."""
    return RecorderThread(folder, settings.database_url, settings.journal, metrics, journal=journal)
