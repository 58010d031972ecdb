"""The database is stopped, frozen or locked under a running recorder: nothing is lost, nothing twice, and it goes on alone."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from billing.books import EMPTY_PINS, Pins
from gateway.metering.journal import Journal
from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from tests.faults.postgresql import OwnPostgresql
from tests.faults.processes import RecorderProcess, all_shipped
from tests.faults.rival import Rival
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually
from tests.gateway.metering.records import closed, opened
from tests.gateway.metering.threaded import RecorderThread

BACKLOG = 20_000


@pytest.fixture
def postgresql(postgresql_server: object) -> Iterator[OwnPostgresql]:
    """Beside the session's server, whose fixture has prepared what the wheel asks of the environment at import."""
    with tempfile.TemporaryDirectory(prefix="metergate-fault-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        server = OwnPostgresql(Path(folder) / "data")
        yield server
        server.remove()


class Traffic:
    """A journal that keeps taking requests, and the recorder under test."""

    def __init__(self, folder: Path, url: str, timeout_s: float) -> None:
        settings = JournalSettings()
        self.metrics = Metrics()
        self.journal = Journal(folder, settings)
        self.recorder = RecorderThread(
            folder, url, settings, self.metrics, journal=self.journal, poll_s=0.005, timeout_s=timeout_s
        )
        self.recorder.start()
        self.answered = 0

    def answer(self, count: int, pins: Pins = EMPTY_PINS) -> None:
        for _ in range(count):
            attempt = opened(pins=pins)
            self.journal.open(attempt)
            self.journal.close(closed(attempt))
        self.answered += count

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"metergate_{name}", labels) or 0.0

    def all_recorded(self) -> bool:
        return self.recorder.lag.unshipped_bytes == 0

    def end(self) -> None:
        self.journal.stop()
        assert self.recorder.end(60)


@pytest.fixture
def traffic(tmp_path: Path) -> Iterator[Callable[..., Traffic]]:
    made: list[Traffic] = []

    def make(url: str, timeout_s: float = 30.0) -> Traffic:
        made.append(Traffic(tmp_path / "journal", url, timeout_s))
        return made[-1]

    yield make
    for each in made:
        each.journal.stop()
        each.recorder.end(0)


def check(database: BooksDatabase, traffic: Traffic) -> None:
    traffic.end()
    assert database.rows("SELECT status, count(*) FROM usage GROUP BY status") == [("completed", traffic.answered)]
    assert database.rows("SELECT sum(requests) FROM rollup_traffic") == [(traffic.answered,)]
    assert database.count("metering_dead_letters") == 0


def test_rule_15_a_frozen_database_is_an_outage_and_not_a_hang(
    postgresql: OwnPostgresql, traffic: Callable[..., Traffic]
) -> None:
    database = BooksDatabase(postgresql.url)
    database.migrate()
    running = traffic(postgresql.url, timeout_s=0.5)
    running.answer(50)
    eventually(running.all_recorded, "the first batch is recorded")
    postgresql.freeze()
    running.answer(50)
    eventually(lambda: running.value("recorder_failures_total", reason="timeout") >= 2, "it times out and tries again")
    running.answer(50)
    assert running.journal.writable
    postgresql.thaw()
    eventually(running.all_recorded, "it goes on by itself", deadline_s=60)
    check(database, running)


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_rule_26_a_database_that_was_away_is_caught_up(
    postgresql: OwnPostgresql, traffic: Callable[..., Traffic], how: str
) -> None:
    database = BooksDatabase(postgresql.url)
    database.migrate()
    running = traffic(postgresql.url)
    running.answer(50)
    eventually(running.all_recorded, "the first batch is recorded")
    getattr(postgresql, how)()
    running.answer(500)
    eventually(lambda: running.value("recorder_failures_total", reason="connection") >= 2, "it fails and tries again")
    assert running.value("journal_unshipped_seconds") > 0
    postgresql.start()
    eventually(running.all_recorded, "it goes on by itself", deadline_s=60)
    check(database, running)


def test_rule_32_a_locked_database_is_tried_again(sqlite_url: str, traffic: Callable[..., Traffic]) -> None:
    database = BooksDatabase(sqlite_url)
    holder = sqlite3.connect(make_url(sqlite_url).database or "", isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        running = traffic(sqlite_url, timeout_s=0.5)
        running.answer(50)
        eventually(
            lambda: (
                sum(running.value("recorder_failures_total", reason=reason) for reason in ("timeout", "conflict")) >= 1
            ),
            "it is told that the database is busy",
        )
        holder.execute("COMMIT")
    finally:
        holder.close()
    eventually(running.all_recorded, "it goes on by itself", deadline_s=60)
    check(database, running)


def test_rule_26_hours_of_backlog_are_shipped_in_bounded_memory(postgresql: OwnPostgresql, tmp_path: Path) -> None:
    """Ten times as much takes no more memory: `BACKLOG` requests are five hours at one a second."""
    database, folder = BooksDatabase(postgresql.url), tmp_path / "journal"
    database.migrate()
    recorder = RecorderProcess(folder, postgresql.url)
    write(folder, BACKLOG // 10)
    eventually(lambda: all_shipped(folder), "the little is shipped", 60)
    little = recorder.peak_bytes
    postgresql.crash()
    write(folder, BACKLOG)
    postgresql.start()
    eventually(lambda: all_shipped(folder), "all of it is shipped", 180)
    grown = recorder.peak_bytes - little
    recorder.end()
    assert database.count("usage", "status = 'completed'") == BACKLOG + BACKLOG // 10
    assert database.rows("SELECT sum(requests) FROM rollup_traffic") == [(BACKLOG + BACKLOG // 10,)]
    assert grown < 24 << 20, f"it grew by {grown >> 20} MiB over {little >> 20}"


def write(folder: Path, requests: int) -> None:
    """What a gateway of so many requests leaves behind."""
    journal = Journal(folder, JournalSettings())
    for _ in range(requests):
        attempt = opened()
        journal.open(attempt)
        journal.close(closed(attempt))
    journal.stop()


@pytest.fixture
def rival(postgresql_url: str) -> Iterator[Rival]:
    rival = Rival(postgresql_url)
    yield rival
    rival.end()


def waits_for_a_lock(database: BooksDatabase) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return database.rows(query) == [(1,)]


def test_rule_32_a_deadlock_is_tried_again(
    postgresql_url: str, traffic: Callable[..., Traffic], rival: Rival, caplog: pytest.LogCaptureFixture
) -> None:
    """The recorder holds `usage` and waits for `wallets`, its rival the other way round; PostgreSQL ends the recorder's wait."""
    database = BooksDatabase(postgresql_url)
    running, pins = traffic(postgresql_url), database.publish()
    running.answer(20, pins)
    eventually(running.all_recorded, "the first batch is recorded")
    rival.do("SET deadlock_timeout = '10min'")
    rival.do("LOCK TABLE wallets IN ACCESS EXCLUSIVE MODE")
    running.answer(20, pins)
    eventually(lambda: waits_for_a_lock(database), "the recorder waits for its rival")
    rival.begin("LOCK TABLE usage IN ACCESS EXCLUSIVE MODE")
    rival.wait()
    rival.do("ROLLBACK")
    eventually(lambda: running.value("recorder_failures_total", reason="conflict") >= 1, "the recorder was broken up")
    eventually(lambda: "deadlock detected" in caplog.text, "and says so")
    eventually(running.all_recorded, "it goes on by itself", deadline_s=60)
    check(database, running)


def test_rule_32_a_transaction_that_cannot_be_serialized_is_tried_again(
    postgresql_url: str, traffic: Callable[..., Traffic], rival: Rival, caplog: pytest.LogCaptureFixture
) -> None:
    """In a database whose owner asks for more isolation than we need."""
    database = BooksDatabase(postgresql_url)
    name = make_url(postgresql_url).database
    database.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")
    running, pins = traffic(postgresql_url), database.publish()
    running.answer(20, pins)
    eventually(running.all_recorded, "the first batch is recorded")
    assert database.count("wallets") == 1
    rival.do("UPDATE wallets SET balance_nano = balance_nano")
    running.answer(20, pins)
    eventually(lambda: waits_for_a_lock(database), "the recorder waits for its rival")
    rival.do("COMMIT")
    eventually(lambda: running.value("recorder_failures_total", reason="conflict") >= 1, "the recorder was refused")
    eventually(lambda: "could not serialize access" in caplog.text, "and says so")
    eventually(running.all_recorded, "it goes on by itself", deadline_s=60)
    check(database, running)


def test_rule_32_two_recorders_that_deadlock_both_finish(postgresql_url: str, tmp_path: Path) -> None:
    """Two processes add to the same rollup cells; batches are sorted, and what PostgreSQL still breaks up is tried again."""
    database = BooksDatabase(postgresql_url)
    pair = [Traffic(tmp_path / "journal", postgresql_url, 30.0) for _ in range(2)]
    for _ in range(20):
        for each in pair:
            each.answer(20)
    for each in pair:
        each.end()
    assert database.count("usage", "status = 'completed'") == 800
    assert database.rows("SELECT sum(requests) FROM rollup_traffic") == [(800,)]
