"""How far a recorder is, as the gateway hears it, and how far the gateway's journal is ahead of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from gateway.metering.journal import Journal
from gateway.metering.reader import Place
from gateway.metering.source import unshipped_bytes
from gateway.metrics import Metrics


class Progress(Struct, frozen=True, array_like=True):
    """Everything of the live journal before `segment` and `offset` is committed, and so is all that was written there before
    `current_at_s` (of the monotonic clock, which all processes of a machine share).

    `inheriting`: the database may still lack what dead processes settled; their journals are not yet found, or not yet shipped.
    """

    inheriting: bool = True
    segment: int = 0
    offset: int = 0
    current_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a journal is ahead of the database. `seconds` is the time since it last was not."""

    unshipped_bytes: int
    seconds: float


def lag(journal: Journal, progress: Progress) -> Lag:
    tail, committed = Place(*journal.tail), Place(progress.segment, progress.offset)
    if committed >= tail:
        return Lag(0, 0.0)
    ahead = unshipped_bytes(journal.folder, committed, tail)
    return Lag(ahead, max(0.0, time.monotonic() - progress.current_at_s))


def watch_journal(metrics: Metrics, journal: Journal, progress: Callable[[], Progress]) -> None:
    """Has the journal's gauges say how it is at every scrape."""
    metrics.watch(metrics.journal_writable, lambda: float(journal.writable))
    metrics.watch(metrics.journal_bytes, lambda: float(journal.disk_bytes))
    metrics.watch(metrics.journal_room, lambda: float(journal.room_bytes))
    metrics.watch(metrics.journal_open, lambda: float(journal.in_flight))
    metrics.watch(metrics.journal_unshipped, lambda: float(lag(journal, progress()).unshipped_bytes))
    metrics.watch(metrics.journal_age, lambda: lag(journal, progress()).seconds)
