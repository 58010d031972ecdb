"""Looking into journals and shipping them again: what `metergate journal ls|show|replay` does.

Nothing here writes to a journal. A replay is harmless at any time: rows that are there already stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from gateway.ids import time_us_of
from gateway.metering.errors import SegmentError
from gateway.metering.pairing import Paired, Pairing, Stray
from gateway.metering.position import read_position
from gateway.metering.reader import START, Gap, JournalReader, Located, Place
from gateway.metering.records import AttemptOpened, Record
from gateway.metering.segments import is_given_up, process_folders, segment_numbers, segment_path, try_lock
from gateway.metering.shipper import Shipped, Shipper
from gateway.metering.source import unshipped_bytes
from gateway.metrics import Metrics

_READ: Final = 1000


class SegmentInfo(msgspec.Struct, frozen=True):
    """One segment file. `shipped` says that everything in it is in the database."""

    number: int
    bytes_on_disk: int
    records: int
    shipped: bool


class JournalInfo(msgspec.Struct, frozen=True):
    """One process's journal. `state` is `live` (or being shipped), `orphan` (waits for adoption), `shipped` (kept for
    `retain_hours`), `unreadable` (`trouble` says why; budgets wait for it) or `given-up`."""

    process: str
    state: str
    segments: list[SegmentInfo]
    unfinished: int
    unshipped_bytes: int
    torn_bytes: int
    damaged_bytes: int
    trouble: str = ""


class ShownRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record as JSON shows it. `kind` is `opened`, `closed`, `settled`, `unknown`, `torn` or `damaged`."""

    process: str
    segment: int
    offset: int
    kind: str
    request_id: str | None = None
    record: Record | None = None
    bytes_skipped: int = 0


class ReplaySummary(msgspec.Struct, frozen=True):
    """What a replay did. `unpaired` outcomes belong to attempts in segments that were deleted long ago; rows `too_old` may be
    gone again."""

    journals: int
    inserted: int
    duplicates: int
    corrected: int
    set_aside: int
    letters_resolved: int
    unpaired: int
    too_old: int


def list_journals(journal: Path) -> list[JournalInfo]:
    """All journals under the folder, oldest first, each read to its end."""
    return [_info(folder) for folder in process_folders(journal)]


def show_records(journal: Path, *, process: str | None = None, request_id: UUID | None = None) -> Iterator[ShownRecord]:
    """Every record in the order of writing, of one process or one request where asked for."""
    wanted = None if request_id is None else str(request_id)
    for folder in process_folders(journal):
        if process is not None and folder.name != process:
            continue
        reader = JournalReader(folder)
        try:
            more = True
            while more:
                located = reader.read(_READ, dead=True)
                more = bool(located)
                shown = [_shown(folder.name, one) for one in located] + _gaps(folder.name, reader)
                for each in sorted(shown, key=lambda each: (each.segment, each.offset)):
                    if wanted is None or each.request_id == wanted:
                        yield each
        finally:
            reader.close()


async def replay(
    journal: Path, database_url: str, metrics: Metrics, *, process: str | None = None, since_us: int = 0
) -> ReplaySummary:
    """Ships every journal from its first segment again, then every dead letter. Raises `Outage` when the database is away.

    An attempt without an outcome becomes `lost` only where its process is dead. What is older than `since_us`, whose rows
    retention has deleted, is left out: nothing would say that it is counted already.
    """
    shipper = Shipper(database_url, metrics)
    total, journals, left_out = Shipped(), 0, _LeftOut()
    try:
        for folder in process_folders(journal):
            if process is not None and folder.name != process:
                continue
            journals += 1
            lock = try_lock(folder)
            try:
                await _replay_one(folder, shipper, total, left_out, dead=lock is not None, since_us=since_us)
            finally:
                if lock is not None:
                    lock.release()
        letters = await shipper.retry_dead_letters()
    finally:
        await shipper.close()
    return ReplaySummary(
        journals=journals,
        inserted=total.inserted,
        duplicates=total.duplicates,
        corrected=total.corrected,
        set_aside=total.set_aside,
        letters_resolved=letters.resolved,
        unpaired=left_out.unpaired,
        too_old=left_out.too_old,
    )


@dataclass(slots=True)
class _LeftOut:
    unpaired: int = 0
    too_old: int = 0


async def _replay_one(
    folder: Path, shipper: Shipper, total: Shipped, left_out: _LeftOut, *, dead: bool, since_us: int
) -> None:
    reader, pairing = JournalReader(folder), Pairing(read_position(folder).carried)
    try:
        more = True
        while more:
            located = reader.read(_READ, dead=dead)
            more = bool(located)
            found = [done for one in located if (done := pairing.feed(one)) is not None]
            if not more and dead:
                found += pairing.lost()
            items: list[Paired | Stray] = []
            for item in found:
                if item.request_id is not None and time_us_of(UUID(bytes=item.request_id)) < since_us:
                    left_out.too_old += 1
                elif isinstance(item, Stray) and item.request_id is not None:
                    left_out.unpaired += 1
                else:
                    items.append(item)
            if items:
                total.add(await shipper.ship(folder.name, items))
    finally:
        reader.close()


def trouble(folder: Path) -> str:
    """Why the rest of this journal can never be shipped as it lies there; empty when it can, or is."""
    try:
        position = read_position(folder)
        if position.complete_us is not None:
            return ""
        lock = try_lock(folder)
        if lock is not None:
            lock.release()
        reader = JournalReader(folder, Place(position.segment, position.offset))
        try:
            while reader.read(_READ, dead=lock is not None):
                pass
        finally:
            reader.close()
    except (SegmentError, OSError) as error:
        return str(error)
    return ""


def state(folder: Path) -> str:
    """See `JournalInfo`."""
    if is_given_up(folder):
        return "given-up"
    if trouble(folder):
        return "unreadable"
    if read_position(folder).complete_us is not None:
        return "shipped"
    lock = try_lock(folder)
    if lock is None:
        return "live"
    lock.release()
    return "orphan"


def _info(folder: Path) -> JournalInfo:
    found, why = state(folder), trouble(folder)
    try:
        return _read_info(folder, found, why)
    except (SegmentError, OSError) as error:
        return JournalInfo(folder.name, found, [], 0, 0, 0, 0, why or str(error))


def _read_info(folder: Path, found: str, why: str) -> JournalInfo:
    position = read_position(folder)
    place = Place(position.segment, position.offset)
    records, gaps, unfinished, end = _read_all(folder)
    return JournalInfo(
        process=folder.name,
        state=found,
        segments=[
            SegmentInfo(
                number=number,
                bytes_on_disk=segment_path(folder, number).stat().st_size,
                records=records.get(number, 0),
                shipped=number < place.segment or found == "shipped",
            )
            for number in segment_numbers(folder)
        ],
        unfinished=unfinished,
        unshipped_bytes=0 if found == "shipped" else unshipped_bytes(folder, place, end),
        torn_bytes=sum(gap.length for gap in gaps if gap.torn),
        damaged_bytes=sum(gap.length for gap in gaps if not gap.torn),
        trouble=why,
    )


def _read_all(folder: Path) -> tuple[dict[int, int], list[Gap], int, Place]:
    reader, pairing, counts = JournalReader(folder, START), Pairing(), dict[int, int]()
    end = START
    try:
        while located := reader.read(_READ, dead=True):
            for one in located:
                counts[one.start.segment] = counts.get(one.start.segment, 0) + 1
                pairing.feed(one)
            end = reader.place
    finally:
        reader.close()
    return counts, reader.gaps, len(pairing), end


def _shown(process: str, one: Located) -> ShownRecord:
    record = one.record
    return ShownRecord(
        process=process,
        segment=one.start.segment,
        offset=one.start.offset,
        kind=_kind(record),
        request_id=None if record is None else str(UUID(bytes=record.request_id)),
        record=record,
    )


def _gaps(process: str, reader: JournalReader) -> list[ShownRecord]:
    gaps, reader.gaps = reader.gaps, []
    return [
        ShownRecord(
            process, gap.start.segment, gap.start.offset, "torn" if gap.torn else "damaged", bytes_skipped=gap.length
        )
        for gap in gaps
    ]


def _kind(record: Record | None) -> str:
    if record is None:
        return "unknown"
    return "opened" if isinstance(record, AttemptOpened) else "closed"
