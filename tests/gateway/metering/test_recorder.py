"""The recorder: every closed request one row, every unfinished one a lost row, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from billing.books import EMPTY_PINS, Pins
from billing.usage import Usage
from gateway.metering.errors import JournalFull
from gateway.metering.journal import Journal
from gateway.metering.position import Position, read_position
from gateway.metering.segments import POSITION_NAME, process_folders, room_on_disk, segment_numbers
from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually
from tests.gateway.metering.records import closed, opened, outcome
from tests.gateway.metering.threaded import RecorderThread

MakeJournal = Callable[..., Journal]


@contextlib.contextmanager
def recording(
    database: BooksDatabase,
    root: Path,
    journal: Journal | None = None,
    *,
    drain: bool = True,
    housekeeping_s: float = 0.02,
    **settings: object,
) -> Iterator[Metrics]:
    """A recorder over `root` that lives as long as the block."""
    metrics = Metrics()
    recorder = RecorderThread(
        root,
        database.url,
        JournalSettings(**settings),  # type: ignore[arg-type]
        metrics,
        journal=journal,
        poll_s=0.005,
        housekeeping_s=housekeeping_s,
    )
    recorder.start()
    try:
        yield metrics
    finally:
        if journal is not None and drain:
            journal.stop()
        assert recorder.end(10.0 if drain else 0.0) or not drain


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"metergate_{name}", labels) or 0.0


def ids(database: BooksDatabase, table: str, column: str) -> list[bytes]:
    found = [row[0] for row in database.rows(f"SELECT {column} FROM {table}")]
    return sorted(
        each.bytes if isinstance(each, UUID) else UUID(str(each)).bytes if isinstance(each, str) else bytes(each)
        for each in found
    )


def test_rule_04_one_closed_request_is_one_row_with_its_exact_figures(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    pins = database.publish()
    journal = make_journal()
    attempt = opened(pins=pins, tags={"stage": "test"})
    with recording(database, journal.folder.parent, journal) as metrics:
        journal.open(attempt)
        journal.close(closed(attempt, outcome(usage=Usage(input=90, output=1_000_000))))
        eventually(lambda: value(metrics, "recorder_rows_total") == 1, "the row is written")
    # 90 x 0.28/1e6 + 0.42 USD, in nano
    assert database.rows("SELECT status, settled_nano, list_nano, cost_nano, tags FROM usage") == [
        ("completed", 420_025_200, 420_025_200, 420_025_200, '{"stage":"test"}')
    ]
    assert database.count("attempts") == 1
    assert (
        value(metrics, "tokens_total", model="deepseek-chat", provider="deepseek", **{"class": "output"}) == 1_000_000
    )
    assert value(metrics, "money_total", amount="settled", currency="USD") == pytest.approx(0.4200252)


def test_a_price_published_while_the_recorder_runs_is_seen(database: BooksDatabase, make_journal: MakeJournal) -> None:
    first_pins = database.publish()
    journal = make_journal()
    with recording(database, journal.folder.parent, journal) as metrics:
        attempt = opened(pins=first_pins)
        journal.open(attempt)
        journal.close(closed(attempt))
        eventually(lambda: value(metrics, "recorder_rows_total") == 1, "the first row is written")
        pins = database.publish("other", output="1")
        attempt = opened(pins=pins, provider="other")
        journal.open(attempt)
        journal.close(closed(attempt))
    assert sorted(database.rows("SELECT provider, settled_nano FROM usage")) == [
        ("deepseek", 90 * 280 + 10 * 420),
        ("other", 90 * 280 + 10 * 1000),
    ]


def test_an_attempt_without_an_outcome_is_lost_when_its_gateway_shuts_down(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal()
    done, lost = opened(), opened()
    with recording(database, journal.folder.parent, journal):
        for attempt in (done, lost):
            journal.open(attempt)
        journal.close(closed(done))
    assert sorted(database.rows("SELECT status, total_input, total_output FROM usage")) == [
        ("completed", 90, 10),
        ("lost", 100, 0),
    ]
    assert read_position(journal.folder).complete_us is not None


def test_the_journal_of_a_dead_process_is_adopted_and_shipped_to_its_end(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    dead = make_journal()
    attempts = [opened() for _ in range(2500)]
    for attempt in attempts:
        dead.open(attempt)
    for attempt in attempts[:2000]:
        dead.close(closed(attempt))
    dead.stop()
    with recording(database, dead.folder.parent) as metrics:
        eventually(lambda: read_position(dead.folder).complete_us is not None, "the orphan is shipped to its end")
    assert sorted(database.rows("SELECT status, count(*) FROM usage GROUP BY status")) == [
        ("completed", 2000),
        ("lost", 500),
    ]
    assert value(metrics, "journals_adopted_total") == 1


def test_a_living_process_is_not_adopted(database: BooksDatabase, make_journal: MakeJournal) -> None:
    living, dead = make_journal(), make_journal()
    living.open(opened())
    dead.open(opened())
    dead.stop()
    with recording(database, living.folder.parent):
        eventually(lambda: read_position(dead.folder).complete_us is not None, "the dead one is shipped")
    assert read_position(living.folder) == Position()
    assert database.count("usage") == 1


@pytest.mark.parametrize("kept", ["position deleted", "position garbled"])
def test_rule_32_reading_everything_again_changes_nothing(
    database: BooksDatabase, make_journal: MakeJournal, kept: str
) -> None:
    pins = database.publish()
    journal = make_journal()
    with recording(database, journal.folder.parent, journal):
        for at in range(300):
            attempt = opened(pins=pins)
            journal.open(attempt)
            if at % 10:
                journal.close(closed(attempt))
    before = database.digest()
    assert len(before[0]) == 300
    position = journal.folder / POSITION_NAME
    if kept == "position deleted":
        position.unlink()
    else:
        position.write_bytes(b"\xc1 garbage")
    with recording(database, journal.folder.parent) as metrics:
        eventually(lambda: read_position(journal.folder).complete_us is not None, "everything is read again")
    assert database.digest() == before
    assert value(metrics, "recorder_duplicates_total") == 300
    assert value(metrics, "recorder_rows_total") == 0


def test_rule_26_a_database_that_is_not_ready_only_delays(
    empty_database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal()
    with recording(empty_database, journal.folder.parent, journal) as metrics:
        attempt = opened()
        journal.open(attempt)
        journal.close(closed(attempt))
        eventually(lambda: value(metrics, "recorder_failures_total", reason="connection") >= 2, "it is tried again")
        assert value(metrics, "journal_unshipped_bytes") > 0
        assert value(metrics, "journal_unshipped_seconds") > 0
        empty_database.migrate()
        eventually(lambda: value(metrics, "recorder_rows_total") == 1, "it arrives once the tables are there")
        eventually(lambda: value(metrics, "journal_unshipped_bytes") == 0, "nothing waits any more")
    assert empty_database.count("usage") == 1
    assert empty_database.count("metering_dead_letters") == 0


def test_rule_32_a_poisoned_row_is_set_aside_and_its_neighbours_are_written(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal()
    attempts = [opened() for _ in range(200)]
    poisoned = attempts[137]
    for attempt in attempts:
        journal.open(attempt)
        usage = Usage(input=2**63) if attempt is poisoned else Usage(input=1)
        journal.close(closed(attempt, outcome(usage=usage)))
    with recording(database, journal.folder.parent, journal) as metrics:
        eventually(lambda: value(metrics, "dead_letters_total") == 1, "the poisoned row is set aside")
    assert database.count("usage") == 199
    ((request_id, reason, journal_name),) = database.rows(
        "SELECT request_id, reason, journal FROM metering_dead_letters WHERE resolved_at_us IS NULL"
    )
    found = request_id if isinstance(request_id, UUID) else UUID(bytes=request_id)
    assert found.bytes == poisoned.request_id
    assert "64" in reason and "INSERT" not in reason
    assert journal_name == journal.folder.name
    assert value(metrics, "recorder_rows_total") == 199


def test_text_that_a_database_refuses_does_not_hold_up_the_rest(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """PostgreSQL has no NUL in text; SQLite takes it."""
    journal = make_journal()
    with recording(database, journal.folder.parent, journal):
        for text in ("fine", "not\0fine", "fine"):
            attempt = opened()
            journal.open(attempt)
            journal.close(
                closed(attempt, outcome(status="failed", usage=None, error=text), status="failed", answered=None)
            )
    letters = database.count("metering_dead_letters")
    assert database.count("usage") == 3 - letters
    assert letters == (1 if database.url.startswith("postgresql") else 0)


REFUSE_ALL = {
    "sqlite": ["CREATE TRIGGER no_more BEFORE INSERT ON usage BEGIN SELECT RAISE(ABORT, 'not today'); END"],
    "postgresql": [
        "CREATE FUNCTION no_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$",
        "CREATE TRIGGER no_more BEFORE INSERT ON usage FOR EACH ROW EXECUTE FUNCTION no_more()",
    ],
}
ALLOW = {"sqlite": "DROP TRIGGER no_more", "postgresql": "DROP TRIGGER no_more ON usage"}


def test_when_no_row_passes_for_what_is_common_to_all_they_wait(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """Twenty of twenty failing for no fault of theirs: reported, tried again, never set aside, written in the end."""
    kind = "postgresql" if database.url.startswith("postgresql") else "sqlite"
    database.execute(*REFUSE_ALL[kind])
    journal = make_journal()
    for _ in range(20):
        attempt = opened()
        journal.open(attempt)
        journal.close(closed(attempt))
    with recording(database, journal.folder.parent, journal) as metrics:

        def failures() -> float:
            return sum(value(metrics, "recorder_failures_total", reason=reason) for reason in ("rows", "connection"))

        eventually(lambda: failures() >= 2, "it is reported and tried again")
        assert database.count("metering_dead_letters") == 0
        database.execute(ALLOW[kind])
        eventually(lambda: value(metrics, "recorder_rows_total") == 20, "all are written")
    assert database.count("metering_dead_letters") == 0


def test_rule_32_rows_that_fail_for_what_they_hold_stall_nobody_however_many_they_are(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """Law: every answered request is a row or a dead letter, whatever it holds and whatever its neighbours hold."""
    journal = make_journal()

    def answered(usage: Usage) -> bytes:
        attempt = opened()
        journal.open(attempt)
        journal.close(closed(attempt, outcome(usage=usage)))
        return attempt.request_id

    poisoned = [answered(Usage(input=2**63, compute_us=2**63)) for _ in range(40)]
    with recording(database, journal.folder.parent, journal) as metrics:
        eventually(lambda: value(metrics, "dead_letters_total") == 40, "each is set aside, though none passes")
        innocent = [answered(Usage(input=1)) for _ in range(20)]
        eventually(lambda: value(metrics, "recorder_rows_total") == 20, "those who come after are written")
        assert value(metrics, "recorder_failures_total", reason="rows") == 0

    assert ids(database, "metering_dead_letters", "request_id") == sorted(poisoned)
    assert ids(database, "usage", "id") == sorted(innocent)


def test_rule_05_a_charge_beyond_64_bits_is_a_flagged_row_and_a_letter_and_stalls_nobody(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """Law: alone or in a sum, what cannot be written as an amount is neither free nor anybody else's trouble."""
    pins = database.publish(output="900000000")
    journal = make_journal()
    for team, output in (("team_a", 10**7), ("team_a", 10**7), ("team_a", 2 * 10**7), ("team_b", 100)):
        attempt = opened(pins=pins, team_id=team)
        journal.open(attempt)
        journal.close(closed(attempt, outcome(usage=Usage(output=output))))
    with recording(database, journal.folder.parent, journal) as metrics:
        eventually(lambda: value(metrics, "recorder_rows_total") == 4, "every request is a row")
        eventually(lambda: value(metrics, "dead_letters_total") == 2, "two are reported")
        assert value(metrics, "overflow_requests_total") == 2
        assert value(metrics, "recorder_failures_total", reason="rows") == 0
    assert database.rows("SELECT team_id, total_output, settled_nano, unpriced FROM usage ORDER BY id") == [
        ("team_a", 10**7, 9 * 10**18, None),
        ("team_a", 10**7, None, "overflow: with it a sum of the books would leave 64 bits"),
        ("team_a", 2 * 10**7, None, "overflow: the amount of 20000000 output is beyond 64 bits"),
        ("team_b", 100, 9 * 10**13, None),
    ]
    reasons = [reason for (reason,) in database.rows("SELECT reason FROM metering_dead_letters")]
    assert all(reason.startswith("overflow: ") and "corrections" in reason for reason in reasons)
    before = database.digest()
    (journal.folder / POSITION_NAME).unlink()
    with recording(database, journal.folder.parent) as metrics:
        eventually(lambda: read_position(journal.folder).complete_us is not None, "everything is read again")
        assert value(metrics, "dead_letters_total") == 0
    assert database.digest() == before


def test_a_value_beyond_64_bits_is_journalled_tamed_and_flagged(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """Law: `open` and `close` never fail for what a record holds, so no attempt stays open for it."""
    journal = make_journal()
    attempt = opened(tags={"team": "bad \ud800"}, reserved=Usage(input=2**70))
    with recording(database, journal.folder.parent, journal):
        journal.open(attempt)
        usage = Usage(input=9, output=5, compute_us=2**64)
        journal.close(closed(attempt, outcome(usage=usage, error="bad \udc80")))
        assert journal.in_flight == 0
    assert database.rows("SELECT status, total_input, compute_us, flaw, tags FROM usage") == [
        ("completed", 9, 2**53, "a count is beyond 64 bits", '{"team":"bad ?"}')
    ]


def test_pins_beyond_the_database_are_set_aside_and_never_rated_with_less(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """A database restored from an older copy lacks the book that a request was opened with."""
    journal = make_journal()
    with recording(database, journal.folder.parent, journal) as metrics:
        attempt = opened(pins=Pins(40, 0, 0))
        journal.open(attempt)
        journal.close(closed(attempt))
        eventually(lambda: value(metrics, "dead_letters_total") == 1, "it is set aside")
    ((reason,),) = database.rows("SELECT reason FROM metering_dead_letters")
    assert "price book 40" in reason and "replay the dead letters" in reason


def test_an_open_request_is_carried_over_many_segments(database: BooksDatabase, make_journal: MakeJournal) -> None:
    journal = make_journal(max_bytes=4 << 20)
    slow = opened()
    with recording(database, journal.folder.parent, journal, drain=False, retain_hours=0, max_bytes=4 << 20) as metrics:
        journal.open(slow)
        while journal.tail[0] < 4:
            attempt = opened(tags={"filler": "x" * 3000})
            journal.open(attempt)
            journal.close(closed(attempt))
        eventually(lambda: segment_numbers(journal.folder)[0] >= 4, "shipped segments are deleted")
        written = value(metrics, "recorder_rows_total")
    position = read_position(journal.folder)
    assert position.carried == (slow,)
    with recording(database, journal.folder.parent, journal, drain=True) as metrics:
        journal.close(closed(slow))
    assert database.count("usage") == database.count("usage", "status = 'completed'") >= written + 1
    assert database.count("metering_dead_letters") == 0


def test_rule_32_a_full_journal_waits_for_shipping_and_for_no_housekeeping(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal(max_bytes=1 << 20)
    written = 0
    with recording(database, journal.folder.parent, journal, housekeeping_s=3600.0, max_bytes=1 << 20):
        while journal.tail[0] < 20:
            eventually(lambda: journal.writable, "what is shipped makes room for more")
            with contextlib.suppress(JournalFull):
                attempt = opened(tags={"filler": "x" * 8000})
                journal.open(attempt)
                journal.close(closed(attempt))
                written += 1
    assert database.count("usage", "status = 'completed'") == written


def test_rule_32_a_disk_that_others_fill_waits_for_shipping_only(
    database: BooksDatabase, make_journal: MakeJournal, small_disk: Path
) -> None:
    """What is kept for a restore goes before a request is refused: journals of the dead first, then our own shipped segments."""
    root = small_disk / "journal"
    dead = make_journal(root, max_bytes=1 << 20)
    while dead.tail[0] < 4:
        attempt = opened(tags={"filler": "x" * 8000})
        dead.open(attempt)
        dead.close(closed(attempt))
    dead.stop()
    journal = make_journal(root, max_bytes=1 << 20)
    with recording(database, root, journal, drain=False, max_bytes=1 << 20):
        eventually(lambda: read_position(dead.folder).complete_us is not None, "the dead one is shipped")
        assert dead.folder.exists()
    with recording(database, root, journal, max_bytes=1 << 20) as metrics:
        with (small_disk / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, room_on_disk(root) - (100 << 10))
        begun = journal.tail[0]
        while journal.tail[0] < begun + 12:  # many times what the disk has left
            eventually(lambda: journal.writable, "what is shipped makes room for more")
            with contextlib.suppress(JournalFull):
                attempt = opened(tags={"filler": "x" * 8000})
                journal.open(attempt)
                journal.close(closed(attempt))
        eventually(lambda: not dead.folder.exists(), "the dead one's is gone")
    assert value(metrics, "journal_shortened_segments_total") >= 10
    answered = database.count("usage", "status = 'completed'")
    assert answered == database.count("usage") > 150


def test_a_replay_whose_first_segments_are_gone_finds_its_rows_in_the_books(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal(max_bytes=4 << 20)
    root = journal.folder.parent
    slow = opened()
    with recording(database, root, journal, drain=False, retain_hours=0, max_bytes=4 << 20) as metrics:
        journal.open(slow)
        while journal.tail[0] < 3:
            attempt = opened(tags={"filler": "x" * 3000})
            journal.open(attempt)
            journal.close(closed(attempt))
        journal.close(closed(slow))
        eventually(lambda: segment_numbers(journal.folder)[0] >= 3, "shipped segments are deleted")
        eventually(lambda: database.count("usage") == value(metrics, "recorder_rows_total") > 100, "all are rows")
    rows = database.count("usage")
    (journal.folder / POSITION_NAME).unlink()
    unknown = opened()
    with recording(database, root, journal, max_bytes=4 << 20) as metrics:
        journal.close(closed(unknown))
    assert value(metrics, "recorder_duplicates_total") >= 1
    assert value(metrics, "dead_letters_total") == 1
    assert ids(database, "metering_dead_letters", "request_id") == [unknown.request_id]
    assert database.count("usage") == rows


def test_shipped_segments_stay_for_the_retention_and_a_dead_folder_goes_after_it(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal()
    root = journal.folder.parent
    journal.open(opened())
    journal.stop()
    with recording(database, root):
        eventually(lambda: read_position(journal.folder).complete_us is not None, "shipped")
    assert segment_numbers(journal.folder) == [1]
    with recording(database, root, retain_hours=0):
        eventually(lambda: process_folders(root) == [], "the folder is deleted once its time is over")


def test_a_true_outcome_after_lost_is_a_linked_reversal_and_a_new_row(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    """An older copy of a journal was shipped first: it ended before the outcome."""
    pins = database.publish()
    journal = make_journal()
    attempt = opened(pins=pins)
    journal.open(attempt)
    journal.flush()
    early = journal.folder.parent.parent / "early" / journal.folder.name
    eventually(lambda: (journal.folder / "spare").exists(), "the folder is at rest")
    shutil.copytree(journal.folder, early)
    journal.close(closed(attempt))
    journal.stop()
    with recording(database, early.parent):
        eventually(lambda: read_position(early).complete_us is not None, "the early copy is shipped")
    assert database.rows("SELECT kind, status, settled_nano FROM usage") == [("usage", "lost", 28_000)]
    for _ in range(2):
        (journal.folder / POSITION_NAME).unlink(missing_ok=True)
        with recording(database, journal.folder.parent):
            eventually(lambda: read_position(journal.folder).complete_us is not None, "the whole journal is shipped")
        rows = database.rows(
            "SELECT kind, status, settled_nano, cost_nano, total_input, total_output FROM usage ORDER BY id"
        )
        assert rows == [
            ("usage", "lost", 28_000, 238_000, 100, 0),
            ("reversal", "lost", -28_000, -238_000, -100, 0),
            ("correction", "completed", 29_400, 29_400, 90, 10),
        ]
    assert database.rows("SELECT count(DISTINCT corrects_id) FROM usage WHERE kind <> 'usage'") == [(1,)]
    # The rollups hold what the three rows add up to: one completed request of 29,400 nano.
    assert database.rows(
        "SELECT sum(requests), sum(errors), sum(settled_nano), sum(cost_nano) FROM rollup_traffic"
    ) == [(1, 0, 29_400, 29_400)]


def test_several_attempts_of_one_request_are_one_row(database: BooksDatabase, make_journal: MakeJournal) -> None:
    journal = make_journal()
    first = opened(pins=EMPTY_PINS)
    with recording(database, journal.folder.parent, journal):
        journal.open(first)
        journal.open(opened(UUID(bytes=first.request_id), sequence=1, provider="second"))
        journal.close(closed(first, outcome(0, "failed", None), outcome(1), answered=1))
    assert database.count("usage") == 1
    assert database.rows("SELECT sequence, provider, status FROM attempts ORDER BY sequence") == [
        (0, "deepseek", "failed"),
        (1, "second", "completed"),
    ]


def test_stopping_without_a_drain_leaves_the_rest_to_the_next_start(
    database: BooksDatabase, make_journal: MakeJournal
) -> None:
    journal = make_journal()
    with recording(database, journal.folder.parent, journal, drain=False):
        pass
    attempt = opened()
    journal.open(attempt)
    journal.close(closed(attempt))
    journal.stop()
    with recording(database, journal.folder.parent):
        eventually(lambda: read_position(journal.folder).complete_us is not None, "the next start ships it")
    assert database.count("usage") == 1
