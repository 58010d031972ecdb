"""The writing half of the journal: synchronous appends that survive the death of the process.

`open` and `close` cost one `write` to a preallocated file and return; a killed process loses nothing that they returned
from. What a power loss can cost is bounded by `fsync_ms` (batched, in a thread), or is nothing (`fsync: record`).

Room is reserved, not hoped for: segments are preallocated, the next one (the spare) is made ahead, and every opened attempt
keeps `CLOSE_RESERVE` bytes for its outcome, so a full disk refuses new requests and never the outcome of a running one.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from billing.usage import Usage
from gateway.metering.errors import JournalBroken, JournalError, JournalFull, RecordTooLarge
from gateway.metering.frames import FRAME_BYTES, HEADER_BYTES, MAX_PAYLOAD, pack_frame, pack_header
from gateway.metering.records import AttemptOpened, RequestClosed, encode
from gateway.metering.segments import (
    SPARE_NAME,
    create_process_folder,
    folder_bytes,
    remove_folder,
    room_on_disk,
    segment_path,
    segment_size,
    sync_folder,
)
from gateway.settings import JournalSettings

log = logging.getLogger(__name__)

CLOSE_RESERVE: Final = 2048
"""Bytes kept for the outcome of each opened attempt."""
ERROR_BYTES: Final = 500
"""An outcome's error texts are cut to this where it would not fit its reserve otherwise."""
STRADDLE_BYTES: Final = 16 << 10
"""A record does not straddle segments; this much at the end of one may stay unused."""
HEAL_S: Final = 0.25
"""How often a full or broken journal looks whether it can write again."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _at_once(delay_s: float, call: Callable[[], None]) -> None:
    call()


class Journal:
    """One process's journal. Appends come from one thread; a second thread syncs, preallocates and heals."""

    def __init__(
        self,
        folder: Path,
        settings: JournalSettings,
        later: Callable[[float, Callable[[], None]], object] = _at_once,
    ) -> None:
        """Makes and locks a folder of its own under `folder`. Raises `JournalFull` or `JournalBroken` when it cannot.

        `later` is an event loop's `call_later`: with it the thread that syncs is woken `fsync_ms` after the first append, when
        those that came with it need the processor no more.
        """
        self._settings = settings
        self._sync_s = settings.fsync_ms / 1000
        self._later = later
        self._segment_bytes = segment_size(settings.max_bytes)
        self._each = settings.fsync == "record"
        self._number = 0
        self._descriptor = -1
        self._offset = 0
        self._size = 0
        self._spare_bytes = 0
        self._owed: deque[tuple[bytes, int]] = deque()
        self._open: dict[bytes, int] = {}
        self._reserved = 0
        self._trouble: JournalError | None = None
        self._reported = ""
        self._stopped = False
        self._dirty = False
        self._asleep = False
        self._retired: list[int] = []
        self._guard = threading.Lock()
        self._spare_guard = threading.Lock()
        self._syncing = threading.Lock()
        self._wake = threading.Event()
        try:
            self._lock = create_process_folder(folder)
        except OSError as error:
            raise _translated(error, f"cannot create a journal under {folder}") from error
        self.folder: Path = self._lock.folder
        try:
            self._make_spare()
            self._rotate()
        except (OSError, JournalError) as error:
            remove_folder(self.folder)
            self._lock.release()
            if isinstance(error, JournalError):
                raise
            raise _translated(error, f"cannot start the journal in {self.folder}") from error
        self._syncer = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._syncer.start()

    # ---- what the door calls ----

    def open(self, record: AttemptOpened) -> None:
        """Raises `JournalFull` or `JournalBroken`; then nothing was written and the attempt must not start."""
        payload = encode(record)
        if len(payload) > MAX_PAYLOAD:
            raise RecordTooLarge(f"an attempt's record has {len(payload)} bytes; the limit is {MAX_PAYLOAD}")
        with self._guard:
            if self._trouble is not None:
                raise type(self._trouble)(str(self._trouble))
            reserved = self._reserved + CLOSE_RESERVE
            need = FRAME_BYTES + len(payload) + reserved
            if self._room() < need:
                self._make_room(need)
            self._append(payload)
            self._reserved = reserved
            request_id = record.request_id
            self._open[request_id] = self._open.get(request_id, 0) + 1

    def close(self, record: RequestClosed) -> None:
        """Raises `JournalBroken` only when the disk itself fails, for room was kept when the attempts were opened.

        Even then the outcome is kept in memory and written as soon as the disk takes it: do not close a second time.
        """
        payload = encode(record)
        if len(payload) > CLOSE_RESERVE - FRAME_BYTES:
            payload = encode(_shortened(record))
        with self._guard:
            if self._stopped:
                raise JournalBroken("the journal is stopped; an outcome came after it")
            attempts = self._open.pop(record.request_id, 0)
            try:
                self._append(payload)
            except JournalError:
                self._owed.append((payload, CLOSE_RESERVE * attempts))
                self._wake.set()
                raise
            self._reserved -= CLOSE_RESERVE * attempts

    @property
    def writable(self) -> bool:
        """Whether another request can be opened now; what readiness asks."""
        return self._trouble is None

    @property
    def trouble(self) -> str | None:
        """Why it is not writable, for people."""
        return None if self._trouble is None else str(self._trouble)

    @property
    def tail(self) -> tuple[int, int]:
        """Segment number and offset behind the last record; the recorder reads up to here."""
        with self._guard:
            return self._number, self._offset

    @property
    def in_flight(self) -> int:
        """Requests opened and not yet closed."""
        return len(self._open)

    @property
    def stopped(self) -> bool:
        """Whether nothing will ever be appended again."""
        return self._stopped

    @property
    def disk_bytes(self) -> int:
        """Disk space that this journal takes now, what is preallocated included."""
        return folder_bytes(self.folder)

    @property
    def room_bytes(self) -> int:
        """What can be appended before new requests are refused, if nothing is deleted by then."""
        if self._trouble is not None:
            return 0
        ahead = room_on_disk(self.folder)
        if self._settings.when_full == "refuse":
            ahead = min(ahead, self._settings.max_bytes - self.disk_bytes)
        return max(0, self._room() + max(0, ahead) - self._reserved)

    def flush(self) -> None:
        """Returns when everything appended so far is on the disk. Blocks; raises `JournalBroken`."""
        with self._syncing:  # nobody else closes a descriptor meanwhile
            with self._guard:
                descriptor, retired, self._retired = self._descriptor, self._retired, []
                self._dirty = False
            try:
                for each in (*retired, descriptor):
                    os.fdatasync(each)
                if retired:
                    sync_folder(self.folder)
            except OSError as error:
                broken = _translated(error, f"the journal in {self.folder} cannot sync")
                with self._guard:
                    self._trouble = self._trouble or broken
                raise broken from error
            finally:
                for each in retired:
                    os.close(each)

    def stop(self) -> None:
        """Syncs, gives back what was preallocated, and lets go of the lock. Idempotent."""
        with self._guard:
            if self._stopped:
                return
            self._stopped = True
            self._trouble = JournalBroken("the journal is stopped: the gateway is shutting down")
        self._wake.set()
        self._syncer.join()
        try:
            os.ftruncate(self._descriptor, self._offset)
            self.flush()
            (self.folder / SPARE_NAME).unlink(missing_ok=True)
        except (OSError, JournalBroken) as error:
            log.error("journal %s: the last sync failed: %s", self.folder, error)
        finally:
            os.close(self._descriptor)
            self._lock.release()

    # ---- appending; the guard is held ----

    def _append(self, payload: bytes) -> None:
        frame = pack_frame(payload)
        if self._size - self._offset < len(frame):
            self._rotate()
        try:
            self._write(frame)
        except OSError as error:
            self._undo(len(frame))
            self._trouble = _translated(error, f"the journal in {self.folder} cannot write")
            self._wake.set()
            raise self._trouble from error
        self._offset += len(frame)
        if not self._dirty:
            self._dirty = True
            if self._asleep:
                self._asleep = False
                self._later(self._sync_s, self._wake.set)

    def _write(self, frame: bytes) -> None:
        written = os.pwrite(self._descriptor, frame, self._offset)
        while written < len(frame):
            written += os.pwrite(self._descriptor, frame[written:], self._offset + written)
        if self._each:
            os.fdatasync(self._descriptor)

    def _undo(self, length: int) -> None:
        """Blots out a frame that was written in part (or whole, but not synced): its caller is told that it is not there."""
        try:
            os.pwrite(self._descriptor, bytes(length), self._offset)
        except OSError:
            try:
                os.ftruncate(self._descriptor, self._offset)
            except OSError as error:
                log.error("journal %s: a torn record stays behind the last one: %s", self.folder, error)
            self._size = self._offset

    def _rotate(self) -> None:
        """Goes on in the spare, made here when the thread has not had the time. Raises `JournalFull` or `JournalBroken`."""
        try:
            self._make_spare()
            number = self._number + 1
            spare = self.folder / SPARE_NAME
            descriptor = os.open(spare, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, pack_header(number), 0)
                os.rename(spare, segment_path(self.folder, number))
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            self._trouble = _translated(error, f"the journal in {self.folder} cannot start a segment")
            raise self._trouble from error
        if self._descriptor >= 0:
            self._retired.append(self._descriptor)
        self._descriptor, self._number = descriptor, number
        self._offset, self._size = HEADER_BYTES, self._spare_bytes
        self._spare_bytes = 0
        self._wake.set()

    def _room(self) -> int:
        """Bytes that are allocated and not written: what is left of this segment, and the spare."""
        room = self._size - self._offset
        if self._spare_bytes:
            room = max(0, room - STRADDLE_BYTES) + self._spare_bytes - HEADER_BYTES
        return room

    def _make_room(self, need: int) -> None:
        """Makes the spare in place when the thread has not had the time. Raises `JournalFull` or `JournalBroken`."""
        try:
            self._make_spare()
        except JournalError as error:
            self._trouble = error
        except OSError as error:
            self._trouble = _translated(error, f"the journal in {self.folder} cannot make its next segment")
        else:
            if self._room() >= need:
                return
            self._trouble = JournalFull(
                f"the journal in {self.folder} has {len(self._open)} requests open and no room more"
            )
        self._wake.set()
        raise self._trouble

    # ---- the next segment; either thread ----

    def _make_spare(self) -> None:
        """Preallocates the next segment if there is none. Raises `JournalFull` where the bound forbids it, or `OSError`."""
        with self._spare_guard:
            if self._spare_bytes:
                return
            size = self._segment_bytes
            self._check_bounds(size)
            temporary = self.folder / f".{SPARE_NAME}"
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
                os.fsync(descriptor)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
            temporary.rename(self.folder / SPARE_NAME)
            self._spare_bytes = size

    def _check_bounds(self, size: int) -> None:
        limit = self._settings.max_bytes
        if self._settings.when_full == "refuse" and folder_bytes(self.folder) + size > limit:
            raise JournalFull(
                f"the journal in {self.folder} has reached journal.max_bytes ({limit}); new requests are refused until the "
                "recorder has shipped some of it to the database"
            )
        if room_on_disk(self.folder) < size:
            raise JournalFull(f"the disk under {self.folder} is full; new requests are refused until it has room")

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            with self._guard:
                busy = self._dirty or bool(self._retired)
                troubled = self._trouble is not None or not self._spare_bytes or bool(self._owed)
                self._asleep = not busy
            self._wake.wait(self._sync_s if busy else HEAL_S if troubled else None)
            self._asleep = False  # what is appended from here on, by this thread too, is seen at the next turn
            self._wake.clear()
            if self._stopped:
                return
            if self._dirty or self._retired:
                try:
                    self.flush()
                except JournalBroken as error:
                    log.error("%s", error)
            self._heal()

    def _heal(self) -> None:
        """Makes the spare; then gets a journal out of trouble by going on in a new segment, what it owes first."""
        try:
            self._make_spare()
            if self._trouble is None and not self._owed:
                return
            with self._guard:
                if self._stopped:
                    return
                if not isinstance(self._trouble, JournalFull):
                    self._rotate()
                while self._owed:
                    payload, reserve = self._owed[0]
                    self._append(payload)
                    self._owed.popleft()
                    self._reserved -= reserve
                self._trouble = None
        except JournalError as error:
            self._report(error)
        except OSError as error:
            self._report(_translated(error, f"the journal in {self.folder} cannot make its next segment"))

    def _report(self, error: JournalError) -> None:
        if str(error) != self._reported:
            self._reported = str(error)
            log.error("%s", error)


def _shortened(record: RequestClosed) -> RequestClosed:
    """The same outcome with every error text and flaw cut to `ERROR_BYTES`; numbers are never touched."""

    def cut(text: str | None) -> str | None:
        return None if text is None else text.encode(errors="replace")[:ERROR_BYTES].decode(errors="ignore")

    def flawed(usage: Usage | None) -> Usage | None:
        return usage if usage is None or usage.flaw is None else msgspec.structs.replace(usage, flaw=cut(usage.flaw))

    attempts = tuple(
        msgspec.structs.replace(attempt, error=cut(attempt.error), usage=flawed(attempt.usage))
        for attempt in record.attempts
    )
    return msgspec.structs.replace(record, error=cut(record.error), attempts=attempts)


def _translated(error: OSError, what: str) -> JournalError:
    kind = JournalFull if error.errno in _FULL else JournalBroken
    return kind(f"{what}: {error.strerror}")
