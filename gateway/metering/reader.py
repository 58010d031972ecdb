"""The reading half of the journal: every whole record in order, from a place on, live or dead.

What stands behind the last whole frame means one of three things: the writer is not done yet (it lives, and this is its
newest segment), a torn tail (it died; the rest is no record and never was answered for), or damage in the middle (skipped
up to the next frame that checks, and counted).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gateway.metering.frames import FRAME_BYTES, HEADER_BYTES, MAX_PAYLOAD, check_header, is_blank, resync, scan
from gateway.metering.records import Record, decode
from gateway.metering.segments import segment_numbers, segment_path

log = logging.getLogger(__name__)

_CHUNK: Final = 256 << 10
_WHOLE: Final = MAX_PAYLOAD + FRAME_BYTES


class Place(NamedTuple):
    """An offset in a segment. Places of one journal compare in the order of writing."""

    segment: int
    offset: int


START: Final = Place(0, 0)


class Located:
    """One whole frame. `record` is None when the payload checks but is no record of this release (`payload` keeps it)."""

    __slots__ = ("offset", "payload", "record", "segment")

    def __init__(self, record: Record | None, payload: bytes, segment: int, offset: int) -> None:
        self.record = record
        self.payload = payload
        self.segment = segment
        self.offset = offset

    @property
    def start(self) -> Place:
        return Place(self.segment, self.offset)


class Gap(NamedTuple):
    """Bytes that are no record: `torn` at the end of what a dead process wrote, else damage in the middle."""

    start: Place
    length: int
    torn: bool


class JournalReader:
    """Reads one process folder. `place` is where the next record is looked for; `gaps` what had to be skipped."""

    def __init__(self, folder: Path, place: Place = START) -> None:
        self.folder = folder
        self.place = place
        self.gaps: list[Gap] = []
        self._descriptor = -1
        self._opened = 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._opened = -1, 0

    def read(self, limit: int, *, dead: bool) -> list[Located]:
        """At most `limit` records behind `place`; fewer only when there are no more.

        `dead` says that nobody writes here any more, so that the newest segment is final too. Raises `SegmentError` for a
        segment of another format version and `OSError` when the disk fails.
        """
        found: list[Located] = []
        while len(found) < limit:
            numbers = segment_numbers(self.folder)
            later = next((number for number in numbers if number > self.place.segment), None)
            if self.place.segment not in numbers:
                if later is None:
                    break
                self.place = Place(later, 0)
                continue
            if not self._enter():
                if later is None and not dead:
                    break
                self._skip_headless()
            if self._take(found, limit):
                continue
            if later is None and not dead:
                break
            if self._skip_damage(torn=later is None):
                continue
            if later is None:
                break
            self.place = Place(later, 0)
        return found

    def _enter(self) -> bool:
        """Opens the segment of `place` and steps over its header; False while it has none."""
        if self._opened != self.place.segment:
            self.close()
            self._descriptor = os.open(segment_path(self.folder, self.place.segment), os.O_RDONLY | os.O_CLOEXEC)
            self._opened = self.place.segment
        if self.place.offset >= HEADER_BYTES:
            return True
        if not check_header(os.pread(self._descriptor, HEADER_BYTES, 0), self.place.segment):
            return False
        self.place = Place(self.place.segment, HEADER_BYTES)
        return True

    def _skip_headless(self) -> None:
        self.gaps.append(Gap(self.place, HEADER_BYTES, torn=False))
        self.place = Place(self.place.segment, HEADER_BYTES)

    def _take(self, found: list[Located], limit: int) -> bool:
        segment, offset = self.place
        data = os.pread(self._descriptor, _CHUNK, offset)
        frames = scan(data, 0, limit - len(found))
        if not frames and len(data) == _CHUNK and not is_blank(data, 0):
            frames = scan(os.pread(self._descriptor, _WHOLE, offset), 0, 1)
        start = offset
        for frame in frames:
            try:
                record: Record | None = decode(frame.payload)
            except (msgspec.DecodeError, UnicodeDecodeError):
                record = None
            found.append(Located(record, frame.payload, segment, start))
            start = offset + frame.end
        self.place = Place(segment, start)
        return bool(frames)

    def _skip_damage(self, *, torn: bool) -> bool:
        """Steps over bytes that are no frame; False when nothing was written behind `place`."""
        segment, offset = self.place
        size = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, max(0, size - offset), offset)
        if is_blank(data, 0):
            return False
        data = data.rstrip(b"\0") + bytes(FRAME_BYTES)
        following = resync(data, 1)
        length = size - offset if following is None else following
        gap = Gap(self.place, length, torn=torn and following is None)
        if not gap.torn:
            log.error("journal %s: %d damaged bytes at %d in segment %d", self.folder, length, offset, segment)
        self.gaps.append(gap)
        self.place = Place(segment, offset + length)
        return True
