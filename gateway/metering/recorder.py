"""The recorder: a thread that turns journals into rows, for as long as the process lives and whatever the database does.

There is one path. The journal that this process writes, the journals that dead processes left, and a replay are all read by
`Source` and written by `Shipper`; they differ only in whether more may come. The thread has an event loop and a database
connection of its own, so the door never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.metering.errors import SegmentError
from gateway.metering.journal import Journal
from gateway.metering.position import read_position
from gateway.metering.reader import Place
from gateway.metering.segments import process_folders, try_lock
from gateway.metering.shipper import Outage, Shipped, Shipper
from gateway.metering.source import HOUR_US, Source, drop_dead_folder, drop_shipped_segments, unshipped_bytes
from gateway.metering.watermarks import Watermarks
from gateway.metrics import Metrics
from gateway.settings import JournalSettings

log = logging.getLogger(__name__)

BATCH_RECORDS: Final = 2000
POLL_S: Final = 0.25
"""A busy gateway writes four batches a second, and more only when they are full: a transaction costs as much as forty rows."""
QUIET_S: Final = 0.05
QUIET_ROWS: Final = 3
"""Where fewer than this came in one look, the next one comes soon: a single request is in the books almost at once."""
HOUSEKEEPING_S: Final = 5.0
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 5.0
FAREWELL_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far this process's journal is ahead of the database. `seconds` is the time since it last was not."""

    unshipped_bytes: int
    seconds: float
    open_requests: int


class Recorder:
    """Ships one live journal (if given) and adopts what dead processes left under `folder`."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        settings: JournalSettings,
        metrics: Metrics,
        *,
        journal: Journal | None = None,
        poll_s: float = POLL_S,
        housekeeping_s: float = HOUSEKEEPING_S,
        timeout_s: float = 30.0,
    ) -> None:
        """`poll_s` is how long a closed request waits for its batch at most; `timeout_s` bounds each transaction."""
        self._folder = folder
        self._url = database_url
        self._settings = settings
        self._metrics = metrics
        self._journal = journal
        self._poll_s = poll_s
        self._housekeeping_s = housekeeping_s
        self._timeout_s = timeout_s
        self._own: Source | None = None
        self._adopted: dict[str, Source] = {}
        self._looked = False
        self._watermarks = Watermarks(folder)
        self._stopping = False
        self._shipped = 0
        self._drain_until_s = 0.0
        self._current_at_s = time.monotonic()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._watch()

    def start(self) -> None:
        """Starts the thread; returns at once. The database may be away: that is only a delay."""
        assert self._thread is None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="recorder", daemon=True)
        self._thread.start()

    def stop(self, *, drain: bool = True, timeout_s: float = 10.0) -> bool:
        """Ends the thread; blocks. With `drain`, what the journal holds is shipped first, for at most `timeout_s`.

        Stop the journal before: then attempts without an outcome become `lost` here and now. Returns whether everything was
        shipped; what was not stays in the journal and is adopted by whoever starts next.
        """
        thread = self._thread
        if thread is None:
            return True
        self._drain_until_s = time.monotonic() + (timeout_s if drain else 0.0)
        self._stopping = True
        if self._loop is not None and self._wake is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                self._loop.call_soon_threadsafe(self._wake.set)
        thread.join()
        self._thread = None
        return self._caught_up()

    @property
    def lag(self) -> Lag:
        own, journal = self._own, self._journal
        if own is None or journal is None:
            return Lag(0, 0.0, 0)
        ahead = unshipped_bytes(own.folder, own.committed, Place(*journal.tail)) if not self._caught_up() else 0
        return Lag(ahead, time.monotonic() - self._current_at_s if ahead else 0.0, journal.in_flight)

    @property
    def inheriting(self) -> bool:
        """Whether the database may still lack what dead processes settled: their journals are not yet found, or not yet shipped.

        True until the first look. Read from other threads: once it is False, what those processes settled is committed.
        """
        return not self._looked or bool(self._adopted)

    def _caught_up(self) -> bool:
        own, journal = self._own, self._journal
        if journal is None:
            return not self._adopted
        if own is None or own.items:
            return False
        # Once the journal is stopped, its unfinished attempts have to become lost rows too.
        return own.done if journal.stopped else own.reader.place >= Place(*journal.tail)

    def _watch(self) -> None:
        metrics, journal = self._metrics, self._journal
        if journal is None:
            return
        metrics.watch(metrics.journal_writable, lambda: float(journal.writable))
        metrics.watch(metrics.journal_bytes, lambda: float(journal.disk_bytes))
        metrics.watch(metrics.journal_open, lambda: float(journal.in_flight))
        metrics.watch(metrics.journal_unshipped, lambda: float(self.lag.unshipped_bytes))
        metrics.watch(metrics.journal_age, lambda: self.lag.seconds)

    # ---- the thread ----

    async def _run(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        if self._journal is not None:
            self._own = Source(self._journal.folder, lock=None)
        shipper = Shipper(self._url, self._metrics, timeout_s=self._timeout_s)
        housekeeping_at_s = 0.0
        try:
            while not (self._stopping and (self._caught_up() or time.monotonic() >= self._drain_until_s)):
                try:
                    if time.monotonic() >= housekeeping_at_s:
                        housekeeping_at_s = time.monotonic() + self._housekeeping_s
                        self._housekeep()
                        if self._watermarks.due:
                            await self._tell(shipper)
                    before = self._shipped
                    if not await self._round(shipper):
                        quiet = self._stopping or self._shipped - before < QUIET_ROWS
                        await self._pause(min(self._poll_s, QUIET_S) if quiet else self._poll_s)
                except Exception:
                    # A fault of our own: what is read and not shipped is still held, so the next round begins with it.
                    log.exception("the recorder failed and goes on")
                    await self._pause(BACKOFF_LAST_S)
            if self._caught_up():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await self._tell(shipper)
        finally:
            await shipper.close()
            for source in [*self._adopted.values(), *([self._own] if self._own else [])]:
                self._leave(source)

    async def _tell(self, shipper: Shipper) -> None:
        """How far the journals are, for whoever closes a month. Not told now is told later, or by whoever comes next."""
        try:
            marks = self._watermarks.collect(self._own, self._caught_up, list(self._adopted.values()))
            if marks:
                await shipper.tell(marks)
            self._watermarks.tell(marks)
        except (Outage, OSError) as error:
            log.info("watermarks are not told: %s", error)

    async def _pause(self, seconds: float) -> None:
        assert self._wake is not None
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _round(self, shipper: Shipper) -> bool:
        """One batch of every journal that has one; whether more lies there already."""
        more = False
        own, journal = self._own, self._journal
        if own is not None and journal is not None:
            if journal.stopped and not own.dead:
                own.lock = try_lock(own.folder)
                own.dead = True
            if own.items or own.dead or own.reader.place < Place(*journal.tail):
                more = await self._advance(own, shipper)
            else:
                own.store_if_due()
            if self._caught_up():
                self._current_at_s = time.monotonic()
        for source in list(self._adopted.values()):
            more = await self._advance(source, shipper) or more
            if source.done:
                source.store()
                self._leave(source)
                del self._adopted[source.name]
                log.info("journal %s: shipped to its end", source.name)
        return more

    async def _advance(self, source: Source, shipper: Shipper) -> bool:
        """Reads and ships one batch; whether the next one should follow at once."""
        if time.monotonic() < source.retry_at_s:
            return False
        try:
            if not source.fill(BATCH_RECORDS):
                return False
            self._note_gaps(source)
            shipped = await shipper.ship(source.name, source.items) if source.items else Shipped()
            source.shipped()
        except Outage as outage:
            self._retry_later(source, outage.verdict.value, str(outage))
            return False
        except (SegmentError, OSError) as error:
            self._retry_later(source, "journal", str(error))
            return False
        self._shipped += shipped.inserted
        if shipped.duplicates:
            log.info("journal %s: %d rows were there already", source.name, shipped.duplicates)
        return source.behind or source.dead

    def _retry_later(self, source: Source, reason: str, message: str) -> None:
        self._metrics.failures[reason].inc()
        source.failures += 1
        delay_s = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2 ** min(source.failures - 1, 10)) * random.uniform(0.5, 1.0)
        source.retry_at_s = time.monotonic() + delay_s
        if source.failures == 1 or source.failures % 60 == 0:
            log.warning("journal %s: not shipped (try %d, going on): %s", source.name, source.failures, message)

    def _note_gaps(self, source: Source) -> None:
        for gap in source.take_gaps():
            if gap.torn:
                log.info(
                    "journal %s: a torn tail of %d bytes in segment %d", source.name, gap.length, gap.start.segment
                )
            else:
                self._metrics.journal_damaged.inc(gap.length)

    def _leave(self, source: Source) -> None:
        try:
            if not source.items:
                source.store()
        except OSError as error:
            log.warning("journal %s: its position is not stored, so it will be read again: %s", source.name, error)
        source.close()

    # ---- housekeeping ----

    def _housekeep(self) -> None:
        try:
            self._adopt()
            self._retire()
        except OSError as error:
            log.warning("journal housekeeping: %s", error)

    def _adopt(self) -> None:
        """Takes over every unfinished journal whose process is dead."""
        for folder in process_folders(self._folder):
            if folder.name in self._adopted or (self._own is not None and folder == self._own.folder):
                continue
            if read_position(folder).complete_us is not None:
                continue
            lock = try_lock(folder)
            if lock is None:
                continue
            if read_position(folder).complete_us is not None:
                lock.release()
                continue
            self._adopted[folder.name] = Source(folder, lock=lock)
            self._metrics.adopted.inc()
            log.info("journal %s: adopted", folder.name)
        self._looked = True

    def _retire(self) -> None:
        """Deletes what has been shipped for longer than `retain_hours`; earlier where `max_bytes` is near."""
        retain_us = self._settings.retain_hours * HOUR_US
        for folder in process_folders(self._folder):
            if self._watermarks.told_complete(folder.name) and folder.name not in self._adopted:
                drop_dead_folder(folder, retain_us=retain_us)
        if self._own is not None:
            room = self._settings.max_bytes * 3 // 4
            early = drop_shipped_segments(self._own.folder, self._own.stored, retain_us=retain_us, room_bytes=room)
            self._metrics.journal_shortened.inc(early)
