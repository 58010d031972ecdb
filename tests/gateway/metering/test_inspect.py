"""Looking into journals and shipping them again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner

from billing.books import Pins
from billing.retention import delete_usage_before
from billing.times import DAY_US
from billing.usage import Usage
from gateway.cli import cli
from gateway.metering.inspect import list_journals, replay, show_records
from gateway.metering.journal import Journal
from gateway.metering.position import read_position
from gateway.metering.segments import segment_path
from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from tests.billing.helpers import request_id
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually
from tests.gateway.metering.records import closed, opened, outcome
from tests.gateway.metering.threaded import RecorderThread

MakeJournal = Callable[..., Journal]


def test_a_listing_tells_live_orphaned_and_unfinished(make_journal: MakeJournal) -> None:
    orphan, live = make_journal(), make_journal()
    done, unfinished = opened(), opened()
    for attempt in (done, unfinished):
        orphan.open(attempt)
    orphan.close(closed(done))
    orphan.stop()
    live.open(opened())
    first, second = list_journals(live.folder.parent)
    assert (first.process, first.state, first.unfinished) == (orphan.folder.name, "orphan", 1)
    assert [(each.number, each.records, each.shipped) for each in first.segments] == [(1, 3, False)]
    assert first.unshipped_bytes == orphan.tail[1]
    assert (second.process, second.state, second.unfinished) == (live.folder.name, "live", 1)


def test_a_torn_tail_is_listed_and_shown(make_journal: MakeJournal) -> None:
    journal = make_journal()
    journal.open(opened())
    journal.stop()
    with segment_path(journal.folder, 1).open("ab") as file:
        file.write(b"\x20\x00\x00\x00torn")
    (info,) = list_journals(journal.folder.parent)
    assert (info.torn_bytes, info.damaged_bytes) == (8, 0)
    assert [shown.kind for shown in show_records(journal.folder.parent)] == ["opened", "torn"]


def test_records_are_shown_as_json_and_found_by_request(make_journal: MakeJournal) -> None:
    journal = make_journal()
    attempts = [opened(tags={"n": str(at)}) for at in range(3)]
    for attempt in attempts:
        journal.open(attempt)
        journal.close(closed(attempt))
    wanted = UUID(bytes=attempts[1].request_id)
    shown = list(show_records(journal.folder.parent, request_id=wanted))
    assert [each.kind for each in shown] == ["opened", "closed"]
    line = msgspec.json.decode(msgspec.json.encode(shown[1]))
    assert line["request_id"] == str(wanted)
    assert line["process"] == journal.folder.name
    assert "completed" in line["record"]


def test_records_are_printed_a_line_each_or_as_one_array(
    make_journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))

    def printed(*options: str) -> str:
        done = CliRunner().invoke(cli, ["journal", "show", *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert (printed(), json.loads(printed("--json"))) == ("", [])
    journal = make_journal()
    attempt = opened()
    journal.open(attempt)
    journal.close(closed(attempt))
    lines = [json.loads(line) for line in printed().splitlines()]
    assert [each["kind"] for each in lines] == ["opened", "closed"]
    assert json.loads(printed("--json")) == lines


def test_a_replay_catches_a_restored_database_up(database: BooksDatabase, make_journal: MakeJournal) -> None:
    journal = make_journal()
    for at in range(30):
        attempt = opened()
        journal.open(attempt)
        if at % 3:
            journal.close(closed(attempt))
    journal.stop()
    root = journal.folder.parent
    recorder = RecorderThread(root, database.url, JournalSettings(), Metrics(), poll_s=0.005)
    recorder.start()
    eventually(lambda: read_position(journal.folder).complete_us is not None, "shipped")
    recorder.end()
    before = database.digest()
    again = asyncio.run(replay(root, database.url, Metrics()))
    assert (again.journals, again.inserted, again.duplicates, again.unpaired) == (1, 0, 30, 0)
    assert database.digest() == before


def test_a_dead_letter_becomes_a_row_once_its_cause_is_mended(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal()
    attempt = opened(pins=Pins(1, 0, 0))
    journal.open(attempt)
    journal.close(closed(attempt, outcome(usage=Usage(input=10))))
    journal.stop()
    first = asyncio.run(replay(journal.folder.parent, database.url, Metrics()))
    assert (first.inserted, first.set_aside) == (0, 1)
    assert database.publish().book == 1
    second = asyncio.run(replay(journal.folder.parent, database.url, Metrics()))
    assert (second.inserted, second.letters_resolved) == (1, 1)
    assert database.rows("SELECT settled_nano FROM usage") == [(2800,)]
    assert database.count("metering_dead_letters", "resolved_at_us IS NULL") == 0


def test_a_replay_leaves_out_what_retention_has_deleted(database: BooksDatabase, make_journal: MakeJournal) -> None:
    """A quiet gateway's segment may be months old: its oldest rows are gone, and nothing says that they were counted."""
    now_us = time.time_ns() // 1000
    horizon_us = now_us - 62 * DAY_US
    journal = make_journal()
    for at_us in (horizon_us - DAY_US, horizon_us - 1_000_000, now_us):
        attempt = opened(request_id(at_us))
        journal.open(attempt)
        journal.close(closed(attempt))
    journal.stop()
    root = journal.folder.parent
    asyncio.run(replay(root, database.url, Metrics()))
    assert database.count("usage") == 3
    assert database.run(lambda connection: delete_usage_before(connection, horizon_us)) == 2
    before = database.digest()
    summary = asyncio.run(replay(root, database.url, Metrics(), since_us=horizon_us))
    assert (summary.inserted, summary.duplicates, summary.too_old) == (0, 1, 2)
    assert database.digest() == before
