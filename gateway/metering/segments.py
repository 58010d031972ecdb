"""The folder of one process's journal: its segments, its lock, and who may touch what.

    journal/<process>/lock            flock'ed by the process that writes, or by the one that has adopted
    journal/<process>/00000001.mgj    segments, numbered from 1; the newest is preallocated with zeros
    journal/<process>/spare           the next segment, preallocated, not yet part of the journal
    journal/<process>/position        how far the recorder has shipped (position.py)
    journal/<process>.given-up        an operator's word that nothing may wait for this journal

A folder appears under its final name only when its lock is held, so that nobody adopts a process that is just starting.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "lock"
SPARE_NAME: Final = "spare"
SEGMENT_BYTES: Final = 16 << 20
LEAST_SEGMENT_BYTES: Final = 64 << 10
FREE_FLOOR_BYTES: Final = 64 << 20
"""Never allocate the last of a disk (or its last twentieth, where that is less): the database may live on it."""
POSITION_NAME: Final = "position"
_SEGMENT: Final = re.compile(r"^(\d{8})\.mgj$")
_PROCESS: Final = re.compile(r"^\d{16,20}-\d+-[0-9a-f]{8}$")


class FolderLock:
    """An exclusive flock on a process folder, held until `release` or until this process dies."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def create_process_folder(journal: Path) -> FolderLock:
    """A new, locked folder for this process under `journal` (made with its parents, mode 0700)."""
    journal.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"{time.time_ns() // 1000:016d}-{os.getpid()}-{secrets.token_hex(4)}"
    birth, folder = journal / f".{name}", journal / name
    birth.mkdir(mode=0o700)
    descriptor = os.open(birth / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    birth.rename(folder)
    sync_folder(journal)
    return FolderLock(folder, descriptor)


def try_lock(folder: Path) -> FolderLock | None:
    """The lock of `folder`, or None while its owner lives (or when the folder is just being deleted)."""
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            return FolderLock(folder, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def process_folders(journal: Path) -> list[Path]:
    """The folders of all processes that ever wrote here, oldest first."""
    if not journal.is_dir():
        return []
    return sorted(entry for entry in journal.iterdir() if _PROCESS.match(entry.name) and entry.is_dir())


def birth_us(folder: Path) -> int:
    """When the process of this folder took its journal, microseconds since the epoch: no request of it is older."""
    return int(folder.name.partition("-")[0])


def give_up(folder: Path) -> None:
    """From now on nobody takes this journal over, and nothing waits for it; `take_back` undoes it. Raises `OSError`."""
    _given_up(folder).touch(mode=0o600)
    sync_folder(folder.parent)


def take_back(folder: Path) -> None:
    _given_up(folder).unlink(missing_ok=True)


def is_given_up(folder: Path) -> bool:
    return _given_up(folder).exists()


def _given_up(folder: Path) -> Path:
    """Beside the folder, for that may be what cannot be written."""
    return folder.with_name(f"{folder.name}.given-up")


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.mgj"


def segment_numbers(folder: Path) -> list[int]:
    """The numbers of the segments in `folder`, ascending; empty when the folder is gone."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _SEGMENT.match(name)))


def folder_bytes(folder: Path) -> int:
    """Disk space that the segments and the spare of `folder` take."""
    total = 0
    for name in [SPARE_NAME, *(segment_path(folder, number).name for number in segment_numbers(folder))]:
        try:
            total += (folder / name).stat().st_size
        except FileNotFoundError:
            continue
    return total


def segment_size(max_bytes: int) -> int:
    """What is preallocated at a time, for a journal that may grow to `max_bytes`."""
    return max(LEAST_SEGMENT_BYTES, min(SEGMENT_BYTES, max_bytes // 8))


def room_on_disk(folder: Path) -> int:
    """What may still be allocated on the disk of `folder`; below 0 where others took what a journal leaves alone."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize - min(FREE_FLOOR_BYTES, disk.f_blocks * disk.f_frsize // 20)


def remove_folder(folder: Path) -> None:
    """Deletes a process folder, the lock last, so that a half-deleted one can still be locked and deleted again."""
    for entry in folder.iterdir():
        if entry.name != LOCK_NAME:
            entry.unlink(missing_ok=True)
    (folder / LOCK_NAME).unlink(missing_ok=True)
    folder.rmdir()
    take_back(folder)


def sync_folder(folder: Path) -> None:
    """Makes creations and renames in `folder` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
