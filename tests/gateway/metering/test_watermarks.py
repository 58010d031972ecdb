"""How far a journal is in the books, as the database is told: what a statement waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from gateway.ids import time_us_of
from gateway.metering import watermarks
from gateway.metering.journal import Journal
from gateway.metering.segments import birth_us
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually
from tests.gateway.metering.records import closed, opened, outcome
from tests.gateway.metering.test_recorder import recording

MakeJournal = Callable[..., Journal]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermarks, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(watermarks, "ADMISSION_US", 0)


def marks(database: BooksDatabase) -> dict[str, tuple[int, bool]]:
    rows = database.rows("SELECT journal, watermark_us, complete_at_us FROM journal_watermarks")
    return {row[0]: (row[1], row[2] is not None) for row in rows}


def test_a_watermark_rises_with_the_clock_and_waits_for_an_open_request(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    pins = database.publish()
    journal = make_journal()
    name = journal.folder.name
    with recording(database, journal.folder.parent, journal):
        eventually(lambda: name in marks(database), "the journal is known before it holds anything")
        attempt = opened(pins=pins)
        journal.open(attempt)
        started_us = time_us_of(UUID(bytes=attempt.request_id))
        asked_us = time.time_ns() // 1000
        eventually(lambda: marks(database)[name] == (started_us, False), "it stops at the open request")
        journal.close(closed(attempt, outcome()))
        eventually(lambda: marks(database)[name][0] > asked_us, "it goes on when the outcome is a row")
        assert database.count("usage") == 1
    assert marks(database)[name][1], "stopped and shipped to its end"


def test_a_journal_of_a_dead_process_is_complete_only_when_it_is_shipped(
    database: BooksDatabase, make_journal: MakeJournal, tmp_path: Path
) -> None:
    pins = database.publish()
    journal = make_journal()
    attempt = opened(pins=pins)
    journal.open(attempt)
    journal.stop()
    with recording(database, journal.folder.parent):
        eventually(lambda: marks(database).get(journal.folder.name, (0, False))[1], "adopted and complete")
    assert database.count("usage", "status = 'lost'") == 1


def test_a_watermark_never_falls_and_complete_stays(sqlite_url: str) -> None:
    from billing.watermarks import journals_behind, raise_watermark

    database = BooksDatabase(sqlite_url)
    for watermark_us, complete in ((20, False), (10, False), (15, True), (12, False)):
        database.run(lambda c, w=watermark_us, d=complete: raise_watermark(c, "one", w, complete=d))  # type: ignore[misc]
    database.run(lambda c: raise_watermark(c, "two", 10))
    assert marks(database) == {"one": (20, True), "two": (10, False)}
    assert [each.journal for each in database.run(lambda c: journals_behind(c, 11))] == ["two"]
    assert database.run(lambda c: journals_behind(c, 10)) == []


def test_a_folder_is_named_after_its_birth(make_journal: MakeJournal) -> None:
    before_us = time.time_ns() // 1000
    assert before_us <= birth_us(make_journal().folder) <= time.time_ns() // 1000
