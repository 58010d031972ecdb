"""The recorder: turns journals into rows, for as long as it runs and whatever the database does.

There is one path. The journal that a living gateway writes, the journals that dead ones left, and a replay are all read by
`Source` and written by `Shipper`; they differ only in whether more may come. A gateway's recorder runs in a process of its own
(`process.py`), so that the door shares neither an interpreter nor a database connection with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.allocator import give_back
from gateway.metering.adoption import REMEDY, Adoption
from gateway.metering.errors import SegmentError
from gateway.metering.progress import Progress
from gateway.metering.reader import Place
from gateway.metering.segments import (
    folder_bytes,
    process_folders,
    room_on_disk,
    segment_numbers,
    segment_size,
    try_lock,
)
from gateway.metering.shipper import Outage, Shipped, Shipper
from gateway.metering.source import HOUR_US, Source, drop_dead_folder, drop_shipped_segments
from gateway.metering.watermarks import Watermarks
from gateway.metrics import Metrics
from gateway.settings import JournalSettings

if TYPE_CHECKING:
    from gateway.telemetry.exporter import Exporter

log = logging.getLogger(__name__)

BATCH_RECORDS: Final = 2000
POLL_S: Final = 0.25
"""A busy gateway writes four batches a second, and more only when they are full: a transaction costs as much as forty rows."""
QUIET_S: Final = 0.05
QUIET_ROWS: Final = 3
"""Where fewer than this came in one look, the next one comes soon: a single request is in the books almost at once."""
HOUSEKEEPING_S: Final = 5.0
ROOM_S: Final = 0.25
"""How often room is made in the own journal, whose gateway looks for it as often."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LAST_S: Final = 5.0
FAREWELL_S: Final = 3.0


class Recorder:
    """Ships one live journal (the folder `own`, if given) and adopts what dead processes left under `folder`."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        settings: JournalSettings,
        metrics: Metrics,
        *,
        own: Path | None = None,
        tell: Callable[[Progress], None] = lambda progress: None,
        exporter: Exporter | None = None,
        poll_s: float = POLL_S,
        housekeeping_s: float = HOUSEKEEPING_S,
        timeout_s: float = 30.0,
    ) -> None:
        """`tell` hears of progress; `poll_s` is how long a closed request waits for its batch at most; `timeout_s` bounds each
        transaction."""
        self._folder = folder
        self._url = database_url
        self._settings = settings
        self._metrics = metrics
        self._tell_progress = tell
        self._exporter = exporter
        self._poll_s = poll_s
        self._housekeeping_s = housekeeping_s
        self._timeout_s = timeout_s
        self._own = None if own is None else Source(own, lock=None)
        self._adoption = Adoption(folder, own, metrics)
        self._watermarks = Watermarks(folder)
        self._finishing = False
        self._asked_at_s = self._finish_by_s = self._room_at_s = 0.0
        self._shipped = 0
        self._at_end = own is None
        self._current_at_s = time.monotonic()
        self._current_us = 0
        self._wake = asyncio.Event()

    def finish(self, drain_s: float = 10.0) -> None:
        """Has `run` return once what the journals hold is shipped, after `drain_s` at the latest.

        Stop the own journal before: then attempts without an outcome become `lost` here and now. What is not shipped stays and is
        adopted by whoever starts next.
        """
        self._finish_by_s = time.monotonic() + drain_s
        self._asked_at_s = time.monotonic()
        self._finishing = True
        self._wake.set()

    async def run(self) -> bool:
        """Until `finish`; whether everything was shipped by then. The database may be away: that is only a delay."""
        shipper = Shipper(self._url, self._metrics, timeout_s=self._timeout_s, exporter=self._exporter)
        housekeeping_at_s = 0.0
        try:
            while not (self._finishing and (self._caught_up() or time.monotonic() >= self._finish_by_s)):
                try:
                    if time.monotonic() >= housekeeping_at_s:
                        housekeeping_at_s = time.monotonic() + self._housekeeping_s
                        self._housekeep()
                        if self._watermarks.due:
                            await self._tell(shipper)
                    before = self._shipped
                    if not await self._round(shipper):
                        quiet = self._finishing or self._shipped - before < QUIET_ROWS
                        await self._pause(min(self._poll_s, QUIET_S) if quiet else self._poll_s)
                except Exception:
                    # A fault of our own: what is read and not shipped is still held, so the next round begins with it.
                    log.exception("the recorder failed and goes on")
                    await self._pause(BACKOFF_LAST_S)
            if self._caught_up():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await self._tell(shipper)
            return self._caught_up()
        finally:
            await shipper.close()
            for source in [*self._adoption.sources.values(), *([self._own] if self._own else [])]:
                self._leave(source)

    def _caught_up(self) -> bool:
        own = self._own
        if own is None:
            return not self._adoption.sources
        # Once the journal is stopped, its unfinished attempts have to become lost rows too.
        return own.done if own.dead else self._at_end and self._current_at_s >= self._asked_at_s

    async def _tell(self, shipper: Shipper) -> None:
        """How far the journals are, for whoever closes a month. Not told now is told later, or by whoever comes next."""
        try:
            marks = self._watermarks.collect(self._own, self._current_us, list(self._adoption.sources.values()))
            if marks:
                await shipper.tell(marks)
            self._watermarks.tell(marks)
        except (Outage, OSError) as error:
            log.info("watermarks are not told: %s", error)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _round(self, shipper: Shipper) -> bool:
        """One batch of every journal that has one; whether more lies there already."""
        more = False
        own = self._own
        if own is not None:
            if self._finishing and not own.dead and (lock := try_lock(own.folder)) is not None:
                own.lock, own.dead = lock, True
            began_s, began_us = time.monotonic(), time.time_ns() // 1000
            more = await self._advance(own, shipper)
            self._make_room(own)
            if own.items or own.behind:
                self._at_end = False
            elif not own.failures:  # what was there when the look began is committed
                self._at_end, self._current_at_s, self._current_us = True, began_s, began_us
        for source in list(self._adoption.sources.values()):
            more = await self._advance(source, shipper) or more
            if source.done:
                self._leave(source)
                del self._adoption.sources[source.name]
                log.info("journal %s: shipped to its end", source.name)
        place = Place(0, 0) if own is None else own.committed
        self._tell_progress(Progress(self._adoption.waiting, place.segment, place.offset, self._current_at_s))
        return more

    async def _advance(self, source: Source, shipper: Shipper) -> bool:
        """Reads and ships one batch; whether the next one should follow at once."""
        if time.monotonic() < source.retry_at_s:
            return False
        try:
            if not source.fill(BATCH_RECORDS):
                source.failures = 0
                source.store_if_due()
                return False
            self._note_gaps(source)
            shipped = await shipper.ship(source.name, source.items) if source.items else Shipped()
            source.shipped()
        except Outage as outage:
            self._retry_later(source, outage.verdict.value, str(outage))
            return False
        except (SegmentError, OSError) as error:
            self._retry_later(source, "journal", f"{error}; {REMEDY}" if source.dead else str(error))
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
            for source in self._adoption.look():
                log.warning("journal %s is given up: what it holds does not come into the books", source.name)
                self._leave(source)
            self._retire()
            give_back()
        except OSError as error:
            log.warning("journal housekeeping: %s", error)

    def _retire(self) -> None:
        """Deletes what has been shipped for longer than `retain_hours`."""
        retain_us = self._settings.retain_hours * HOUR_US
        for folder in process_folders(self._folder):
            if self._watermarks.told_complete(folder.name) and folder.name not in self._adoption.sources:
                drop_dead_folder(folder, retain_us=retain_us)

    def _make_room(self, own: Source) -> None:
        """Deletes shipped segments where `max_bytes` or the disk is near: requests are refused only for unshipped ones."""
        if time.monotonic() < self._room_at_s:
            return
        self._room_at_s = time.monotonic() + ROOM_S
        room = self._settings.max_bytes * 3 // 4
        retain_us = self._settings.retain_hours * HOUR_US
        if (short := 2 * segment_size(self._settings.max_bytes) - room_on_disk(own.folder)) > 0:
            short -= self._retire_early(short)
            room = min(room, folder_bytes(own.folder) - max(0, short))
        early = drop_shipped_segments(own.folder, own.stored, retain_us=retain_us, room_bytes=room)
        self._metrics.journal_shortened.inc(early)

    def _retire_early(self, need: int) -> int:
        """Deletes shipped journals of the dead, oldest first, until `need` bytes of the disk are free; how many are."""
        freed = 0
        for folder in process_folders(self._folder):
            if freed >= need:
                break
            if self._watermarks.told_complete(folder.name) and folder.name not in self._adoption.sources:
                size, segments = folder_bytes(folder), len(segment_numbers(folder))
                if drop_dead_folder(folder, retain_us=0):
                    freed += size
                    self._metrics.journal_shortened.inc(segments)
        return freed
