"""Law: whatever is killed and whenever, every request that was opened has exactly one row and every answered one its figures."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from gateway.metering.segments import POSITION_NAME, process_folders
from tests.faults.law import Witness, violations
from tests.faults.processes import RecorderProcess, Writer, all_shipped
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually

RUNS = 4


@pytest.fixture
def database(database_url: str) -> BooksDatabase:
    return BooksDatabase(database_url)


def pass_time(seconds: float) -> None:
    """A random moment is the point here, so there is no condition to wait for."""
    time.sleep(seconds)


def ship(journal: Path, database: BooksDatabase) -> None:
    recorder = RecorderProcess(journal, database.url)
    eventually(lambda: all_shipped(journal), "the recorder ships what the dead have left", deadline_s=60)
    recorder.end()


def test_writers_and_recorders_killed_at_random_moments_lose_and_double_nothing(
    database: BooksDatabase, tmp_path: Path
) -> None:
    dice = random.Random()
    journal, witnesses = tmp_path / "journal", list[Witness]()
    recorder = RecorderProcess(journal, database.url)
    for run in range(RUNS):
        writer = Writer(journal, tmp_path / f"said-{run}")
        writer.wait_until_speaking()
        pass_time(dice.uniform(0.0, 0.1))
        if run % 2:
            recorder.kill()
        witnesses.append(writer.kill())
        if run % 2:
            recorder = RecorderProcess(journal, database.url)
    eventually(lambda: all_shipped(journal), "the last recorder ships what all the dead have left", deadline_s=90)
    recorder.end()
    assert sum(len(witness.closed) for witness in witnesses) > RUNS
    assert violations(database, witnesses) == []
    before = database.digest()
    for folder in process_folders(journal):
        (folder / POSITION_NAME).unlink()
    ship(journal, database)
    assert database.digest() == before, "a replay after the commit changes nothing"


def test_a_frozen_recorder_goes_on_where_it_stood(sqlite_url: str, tmp_path: Path) -> None:
    database, journal = BooksDatabase(sqlite_url), tmp_path / "journal"
    recorder = RecorderProcess(journal, database.url)
    writer = Writer(journal, tmp_path / "said")
    writer.wait_until_speaking()
    recorder.freeze()
    witness = writer.kill()
    recorder.thaw()
    eventually(lambda: all_shipped(journal), "the recorder ships")
    recorder.end()
    assert violations(database, [witness]) == []


def test_two_recorders_over_one_folder_do_not_double(database: BooksDatabase, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    writers = [Writer(journal, tmp_path / f"said-{at}") for at in range(3)]
    recorders = [RecorderProcess(journal, database.url) for _ in range(2)]
    for writer in writers:
        writer.wait_until_speaking()
    witnesses = [writer.kill() for writer in writers]
    eventually(lambda: all_shipped(journal), "they ship it between them", deadline_s=60)
    for recorder in recorders:
        recorder.end()
    assert violations(database, witnesses) == []


def test_the_harness_catches_an_outcome_written_after_the_last_byte(sqlite_url: str, tmp_path: Path) -> None:
    database, journal = BooksDatabase(sqlite_url), tmp_path / "journal"
    witness = Writer(journal, tmp_path / "said", "close-after-answer").wait()
    ship(journal, database)
    (found,) = violations(database, [witness])
    assert "was answered with" in found and "('lost', 0)" in found


def test_the_harness_catches_a_request_that_is_metered_twice(sqlite_url: str, tmp_path: Path) -> None:
    database, journal = BooksDatabase(sqlite_url), tmp_path / "journal"
    writer = Writer(journal, tmp_path / "said", "twice")
    writer.wait_until_speaking()
    pass_time(0.1)
    witness = writer.kill()
    ship(journal, database)
    assert any("rows that nobody opened" in each for each in violations(database, [witness]))
