"""How far each journal is in the books, told to the database: a statement waits until every journal is past its month."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

from gateway.metering.position import read_position
from gateway.metering.segments import birth_us, process_folders
from gateway.metering.source import Source

TELL_EVERY_S: Final = 10.0
ADMISSION_US: Final = 15 * 60 * 1_000_000
"""A request's id is at most this much older than its first record: reading the body and admission lie in between."""


class Mark(NamedTuple):
    """Every request of `journal` whose id is older than `watermark_us` is committed; `complete`: no other will come."""

    journal: str
    watermark_us: int
    complete: bool


class Watermarks:
    """What of one journal folder is to be told, and what has been."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._told: set[str] = set()
        self._due_at_s = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_at_s

    def told_complete(self, journal: str) -> bool:
        """Whether the database knows that nothing more comes from this journal."""
        return journal in self._told

    def collect(self, own: Source | None, current_us: int, adopted: list[Source]) -> list[Mark]:
        """The marks to tell now. What the own journal held at `current_us` is committed."""
        marks = []
        if own is not None:
            marks.append(_mark(own, max(own.shipped_us, current_us) - ADMISSION_US))
        for source in adopted:
            marks.append(_mark(source, source.shipped_us - ADMISSION_US))
        handled = {mark.journal for mark in marks}
        for folder in process_folders(self._root):
            if folder.name in handled or folder.name in self._told:
                continue
            if read_position(folder).complete_us is not None:
                marks.append(Mark(folder.name, birth_us(folder), True))
        return marks

    def tell(self, marks: list[Mark]) -> None:
        """The database has them."""
        self._told.update(mark.journal for mark in marks if mark.complete)
        self._due_at_s = time.monotonic() + TELL_EVERY_S


def _mark(source: Source, until_us: int) -> Mark:
    oldest_us = source.oldest_pending_us
    if oldest_us is not None:
        until_us = min(until_us, oldest_us)
    return Mark(source.name, max(until_us, birth_us(source.folder)), source.done)
