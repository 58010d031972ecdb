"""The writing half: what was accepted is there after any death, and what cannot be kept is refused before it starts."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gateway.metering.errors import JournalBroken, JournalFull, RecordTooLarge
from gateway.metering.journal import CLOSE_RESERVE, Journal
from gateway.metering.reader import JournalReader
from gateway.metering.records import AttemptOpened, Record, encode
from gateway.metering.segments import process_folders, segment_numbers, segment_path, try_lock
from gateway.settings import JournalSettings
from tests.gateway.metering.conftest import eventually
from tests.gateway.metering.records import closed, opened, outcome

MakeJournal = Callable[..., Journal]
SMALL = 1 << 20


def records_in(folder: Path, *, dead: bool = True) -> list[Record]:
    reader = JournalReader(folder)
    try:
        found = reader.read(1_000_000, dead=dead)
    finally:
        reader.close()
    assert reader.gaps == []
    assert all(one.record is not None for one in found)
    return [one.record for one in found if one.record is not None]


def fill(journal: Journal) -> list[AttemptOpened]:
    """Opens attempts until the journal refuses one."""
    taken: list[AttemptOpened] = []
    while True:
        attempt = opened()
        try:
            journal.open(attempt)
        except JournalFull:
            return taken
        taken.append(attempt)
        assert len(taken) < 1_000_000


def test_records_are_read_back_as_they_were_written(make_journal: MakeJournal) -> None:
    journal = make_journal()
    attempt = opened(tags={"stage": "test", "名": "值"})
    done = closed(attempt)
    journal.open(attempt)
    journal.close(done)
    assert records_in(journal.folder, dead=False) == [attempt, done]


def test_a_record_is_in_the_file_when_open_returns(make_journal: MakeJournal) -> None:
    journal = make_journal(fsync_ms=10_000)
    attempt = opened()
    journal.open(attempt)
    assert encode(attempt) in segment_path(journal.folder, 1).read_bytes()


def test_the_first_append_after_a_rest_asks_once_for_a_sync_of_all_that_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking the thread at once would cost the requests that begin together a sync each, and the interpreter's lock."""
    asked: list[tuple[float, Callable[[], None]]] = []
    synced: list[int] = []
    sync = os.fdatasync

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr("os.fdatasync", note)
    journal = Journal(tmp_path, JournalSettings(fsync_ms=40), lambda delay_s, call: asked.append((delay_s, call)))
    try:
        for rests in (1, 2):
            while len(asked) < rests:  # until the thread has seen that there is nothing to do
                journal.open(opened())
                time.sleep(0.005)
            synced.clear()
            for _ in range(20):
                journal.open(opened())
            assert [delay_s for delay_s, _ in asked] == [0.04] * rests
            asked[-1][1]()
            eventually(lambda: bool(synced), "the thread syncs")
    finally:
        journal.stop()


def test_an_outcome_that_the_thread_writes_later_asks_the_loop_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`call_later` belongs to the loop's own thread; this one is awake anyway."""
    asked: list[threading.Thread] = []
    write, broken = os.pwrite, True

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if broken:
            raise OSError(errno.EIO, "the disk fails")
        return write(descriptor, data, offset)

    journal = Journal(tmp_path, JournalSettings(), lambda delay_s, call: asked.append(threading.current_thread()))
    try:
        attempt = opened()
        journal.open(attempt)
        asked.clear()
        journal._wake.set()  # as the loop's timer does
        eventually(lambda: journal._asleep, "the thread rests")
        monkeypatch.setattr("os.pwrite", pwrite)
        with pytest.raises(JournalBroken):
            journal.close(closed(attempt))
        broken = False
        eventually(lambda: records_in(journal.folder, dead=False) == [attempt, closed(attempt)], "it is written")
        assert asked == []
    finally:
        journal.stop()


def test_segments_rotate_and_nothing_is_lost_between_them(make_journal: MakeJournal) -> None:
    journal = make_journal(max_bytes=64 * SMALL)
    written: list[Record] = []
    while len(segment_numbers(journal.folder)) < 4:
        attempt = opened(tags={"filler": "x" * 20_000})
        journal.open(attempt)
        journal.close(closed(attempt))
        written += [attempt, closed(attempt)]
    assert records_in(journal.folder, dead=False) == written


def test_the_folder_is_locked_while_its_writer_lives_and_free_afterwards(make_journal: MakeJournal) -> None:
    journal = make_journal()
    assert try_lock(journal.folder) is None
    journal.stop()
    lock = try_lock(journal.folder)
    assert lock is not None
    lock.release()


def test_two_journals_of_one_process_have_folders_of_their_own(make_journal: MakeJournal, tmp_path: Path) -> None:
    first, second = make_journal(), make_journal()
    assert process_folders(tmp_path / "journal") == sorted([first.folder, second.folder])


def test_a_stopped_journal_gives_back_what_it_preallocated_and_takes_nothing_more(make_journal: MakeJournal) -> None:
    journal = make_journal()
    attempt = opened()
    journal.open(attempt)
    journal.stop()
    assert not journal.writable
    assert segment_path(journal.folder, 1).stat().st_size == journal.tail[1]
    assert not (journal.folder / "spare").exists()
    with pytest.raises(JournalBroken, match="stopped: the gateway is shutting down"):
        journal.open(opened())
    with pytest.raises(JournalBroken, match="an outcome came after it"):
        journal.close(closed(attempt))


def test_rule_32_a_full_journal_refuses_new_requests_and_never_an_outcome(make_journal: MakeJournal) -> None:
    journal = make_journal(max_bytes=SMALL)
    assert SMALL // 2 < journal.room_bytes <= SMALL
    taken = fill(journal)
    assert len(taken) > 100
    assert not journal.writable and journal.room_bytes == 0
    assert "journal.max_bytes" in (journal.trouble or "") or "no room" in (journal.trouble or "")
    for attempt in taken:
        journal.close(closed(attempt, outcome(error="上游" * 1000), status="failed", answered=None, error="e" * 9000))
    assert journal.in_flight == 0
    found = records_in(journal.folder, dead=False)
    assert len(found) == 2 * len(taken)
    assert journal.disk_bytes <= SMALL


def test_a_full_journal_takes_requests_again_when_shipped_segments_go(make_journal: MakeJournal) -> None:
    journal = make_journal(max_bytes=SMALL)
    for attempt in fill(journal):
        journal.close(closed(attempt))
    for number in segment_numbers(journal.folder)[:-1]:
        segment_path(journal.folder, number).unlink()
    eventually(lambda: journal.writable, "the journal heals once there is room")
    journal.open(opened())


def test_spill_goes_beyond_the_bound(make_journal: MakeJournal) -> None:
    journal = make_journal(max_bytes=SMALL, when_full="spill")
    while journal.disk_bytes < 3 * SMALL:
        attempt = opened(tags={"filler": "x" * 5_000})
        journal.open(attempt)
        journal.close(closed(attempt))
    assert journal.writable


@pytest.mark.parametrize("when_full", ["refuse", "spill"])
def test_rule_32_a_full_disk_refuses_new_requests_keeps_outcomes_and_heals(
    make_journal: MakeJournal, small_disk: Path, when_full: str
) -> None:
    journal = make_journal(small_disk / "journal", max_bytes=4 * SMALL, when_full=when_full)
    ballast = small_disk / "ballast"
    disk = os.statvfs(small_disk)
    # The spare is made ahead by the other thread: only what is left after it may be taken away.
    eventually(lambda: (journal.folder / "spare").exists(), "the spare is ready")
    free = os.statvfs(small_disk).f_bavail * disk.f_frsize
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free)
    written = 0

    def exhausted() -> bool:
        nonlocal written
        taken = fill(journal)
        for attempt in taken:
            journal.close(closed(attempt))
        written += 2 * len(taken)
        return "the disk under" in (journal.trouble or "")

    eventually(exhausted, "what was preallocated is used up")
    assert os.statvfs(small_disk).f_bavail == 0
    assert journal.room_bytes == 0
    assert written > 1000
    assert len(records_in(journal.folder, dead=False)) == written
    ballast.unlink()
    eventually(lambda: journal.writable, "the journal heals once the disk has room")
    attempt = opened()
    journal.open(attempt)
    journal.close(closed(attempt))
    assert len(records_in(journal.folder, dead=False)) == written + 2


def test_a_journal_that_cannot_start_leaves_nothing_behind(tmp_path: Path, make_journal: MakeJournal) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, hard))
    try:
        with pytest.raises(JournalFull, match="cannot start the journal"):
            make_journal()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert process_folders(tmp_path / "journal") == []


def test_a_file_size_limit_refuses_the_next_segment_and_keeps_every_outcome(make_journal: MakeJournal) -> None:
    journal = make_journal(max_bytes=4 * SMALL)
    eventually(lambda: (journal.folder / "spare").exists(), "the spare is ready")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        taken = fill(journal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for attempt in taken:
        journal.close(closed(attempt))
    assert len(records_in(journal.folder, dead=False)) == 2 * len(taken)


def test_an_outcome_that_the_disk_refused_is_written_when_it_heals(make_journal: MakeJournal) -> None:
    journal = make_journal()
    attempt = opened()
    journal.open(attempt)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(JournalFull):
            journal.close(closed(attempt))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    eventually(lambda: journal.writable, "the journal heals")
    assert records_in(journal.folder, dead=False) == [attempt, closed(attempt)]


def test_every_record_is_synced_by_itself_where_that_is_asked_for(make_journal: MakeJournal) -> None:
    journal = make_journal(fsync="record")
    attempt = opened()
    journal.open(attempt)
    journal.close(closed(attempt))
    assert records_in(journal.folder, dead=False) == [attempt, closed(attempt)]


def test_flush_returns_after_the_sync(make_journal: MakeJournal) -> None:
    journal = make_journal(fsync_ms=10_000)
    journal.open(opened())
    journal.flush()
    assert journal.writable


def test_a_record_beyond_the_frame_limit_is_refused(make_journal: MakeJournal) -> None:
    journal = make_journal()
    with pytest.raises(RecordTooLarge, match="the limit is 1048576"):
        journal.open(opened(tags={"big": "x" * (1 << 20)}))
    assert journal.writable


def test_the_error_text_of_an_outcome_is_cut_to_its_reserve_and_its_numbers_are_not(make_journal: MakeJournal) -> None:
    journal = make_journal()
    attempt = opened()
    journal.open(attempt)
    journal.close(closed(attempt, outcome(error="€" * 5000)))
    kept = records_in(journal.folder, dead=False)[1]
    cut = closed(attempt, outcome(error="€" * 166))
    assert kept == cut
    assert len(msgspec.msgpack.encode(cut)) < CLOSE_RESERVE


def test_requests_in_flight_are_counted(make_journal: MakeJournal) -> None:
    journal = make_journal()
    first, second = opened(), opened()
    journal.open(first)
    journal.open(opened_again := msgspec.structs.replace(first, sequence=1))
    journal.open(second)
    assert opened_again.request_id == first.request_id
    assert journal.in_flight == 2
    journal.close(closed(first))
    assert journal.in_flight == 1
