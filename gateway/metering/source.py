"""One journal on its way into the database: read, paired, shipped, its position stored, its old segments deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from gateway.ids import time_us_of
from gateway.metering.pairing import Paired, Pairing, Stray
from gateway.metering.position import Position, read_position, write_position
from gateway.metering.reader import Gap, JournalReader, Place
from gateway.metering.segments import (
    FolderLock,
    birth_us,
    folder_bytes,
    remove_folder,
    segment_numbers,
    segment_path,
    try_lock,
)

log = logging.getLogger(__name__)

STORE_EVERY_S: Final = 1.0
HOUR_US: Final = 3_600_000_000


class Source:
    """The reading state of one process folder. `dead` says that nobody writes there any more.

    `items` are read and not yet committed; everything before `committed` is in the database, and so is what was appended
    before `shipped_us` and has its outcome.
    """

    def __init__(self, folder: Path, *, lock: FolderLock | None) -> None:
        """`lock` is held for a dead process's folder; None for the journal that this process itself writes."""
        self.folder = folder
        self.name = folder.name
        self.lock = lock
        self.dead = lock is not None
        self.items: Sequence[Paired | Stray] = ()
        self.failures = 0
        self.retry_at_s = 0.0
        self.stored = read_position(folder)
        self.reader = JournalReader(folder, Place(self.stored.segment, self.stored.offset))
        self.committed = self.reader.place
        self.shipped_us = birth_us(folder)
        self._read_us = self.shipped_us
        self._through = Place(self.stored.segment, self.stored.through_offset)
        self._pairing = Pairing(self.stored.carried)
        self._stored_at_s = time.monotonic()
        self._ended = False
        self._unstored = False
        self.behind = False
        """Whether the last read was a full one, so that more lies there already."""

    @property
    def done(self) -> bool:
        """Whether a dead process's journal is shipped to its end."""
        return self._ended and not self.items

    @property
    def pending(self) -> int:
        """Requests read as opened and not yet closed."""
        return len(self._pairing)

    @property
    def oldest_pending_us(self) -> int | None:
        """The time inside the oldest id that was read as opened and not yet closed, or is being shipped."""
        waiting = [time_us_of(UUID(bytes=item.request_id)) for item in self.items if item.request_id is not None]
        pending = self._pairing.oldest_id_us()
        return min([*waiting, *([] if pending is None else [pending])], default=None)

    def fill(self, limit: int) -> bool:
        """Reads the next items, unless some are still waiting to be shipped; whether there are any."""
        if self.items or self._ended:
            return bool(self.items)
        self.behind = False
        located = self.reader.read(limit, dead=self.dead)
        completed: list[Paired | Stray] = []
        for one in located:
            if one.record is not None:
                self._read_us = max(self._read_us, one.record.at_us)
            done = self._pairing.feed(one)
            if done is not None and not (isinstance(done, Stray) and one.start < self._through):
                completed.append(done)
        if self.dead and not located:
            completed += self._pairing.lost()
            self._ended = True
        self.items = completed
        self.behind = len(located) >= limit
        return bool(completed) or bool(located)

    def shipped(self) -> None:
        """The items are committed. Stores the position when the segment changed, or every `STORE_EVERY_S`."""
        self.items = ()
        self.committed = self.reader.place
        self.shipped_us = self._read_us
        self.failures = 0
        if not self._ended:
            self.store_if_due()

    def store_if_due(self) -> None:
        """A position that cannot be stored is only late: a full disk does not keep the rest from the database."""
        waited = time.monotonic() - self._stored_at_s > STORE_EVERY_S
        if not waited and (self._unstored or self.reader.place.segment == self.stored.segment):
            return
        try:
            self.store()
            self._unstored = False
        except OSError as error:
            self._stored_at_s = time.monotonic()
            if not self._unstored:
                log.warning("journal %s: its position cannot be stored now: %s", self.name, error)
            self._unstored = True

    def store(self) -> None:
        """Writes the position of everything committed so far. Only while no items are waiting."""
        assert not self.items
        position = self._pairing.position(self.reader.place)
        if self._ended:
            position = Position(position.segment, position.offset, position.through_offset, (), time.time_ns() // 1000)
        if position != self.stored:
            write_position(self.folder, position)
            self.stored = position
        self._stored_at_s = time.monotonic()

    def take_gaps(self) -> list[Gap]:
        gaps, self.reader.gaps = self.reader.gaps, []
        return gaps

    def close(self) -> None:
        self.reader.close()
        if self.lock is not None:
            self.lock.release()


def unshipped_bytes(folder: Path, stored: Place, tail: Place) -> int:
    """How much of a journal lies between two places."""
    total = 0
    for number in segment_numbers(folder):
        if stored.segment <= number <= tail.segment:
            try:
                size = segment_path(folder, number).stat().st_size
            except FileNotFoundError:
                continue
            end = tail.offset if number == tail.segment else size
            total += max(0, end - (stored.offset if number == stored.segment else 0))
    return total


def drop_shipped_segments(folder: Path, stored: Position, *, retain_us: int, room_bytes: int | None) -> int:
    """Deletes segments before the stored position that are older than `retain_us`; then, oldest first, as many more as keep
    the folder within `room_bytes`. How many went before their time."""
    early, now_us = 0, time.time_ns() // 1000
    for number in segment_numbers(folder):
        if number >= stored.segment:
            break
        path = segment_path(folder, number)
        expired = now_us - path.stat().st_mtime_ns // 1000 >= retain_us
        if not expired:
            if room_bytes is None or folder_bytes(folder) <= room_bytes:
                break
            early += 1
        path.unlink()
    return early


def drop_dead_folder(folder: Path, *, retain_us: int) -> bool:
    """Deletes a dead process's folder that was shipped to its end more than `retain_us` ago."""
    complete_us = read_position(folder).complete_us
    if complete_us is None or time.time_ns() // 1000 - complete_us < retain_us:
        return False
    lock = try_lock(folder)
    if lock is None:
        return False
    try:
        remove_folder(folder)
    finally:
        lock.release()
    return True
