"""Journals that nobody can read: they hold up no other one, budgets wait for them, and an operator can give them up."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway import doctor
from gateway.cli import cli
from gateway.doctor_finding import Health
from gateway.metering.frames import HEADER_BYTES, pack_header
from gateway.metering.inspect import list_journals
from gateway.metering.journal import Journal
from gateway.metering.position import read_position
from gateway.metering.segments import LOCK_NAME, give_up, is_given_up, segment_path, take_back
from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually
from tests.gateway.metering.records import closed, opened
from tests.gateway.metering.threaded import RecorderThread

MakeJournal = Callable[..., Journal]
Spoil = Callable[[Path], None]


def of_a_later_release(folder: Path) -> None:
    head = struct.pack("<8sHHI", b"MGJOURNL", 99, 0, 1)
    with segment_path(folder, 1).open("r+b") as file:
        file.write(head + struct.pack("<I", zlib.crc32(head)))


def not_to_be_locked(folder: Path) -> None:
    """A lock that cannot be opened, as on a disk that fails or under another user."""
    (folder / LOCK_NAME).unlink()
    (folder / LOCK_NAME).mkdir()


def mend(folder: Path) -> None:
    with segment_path(folder, 1).open("r+b") as file:
        assert len(pack_header(1)) == HEADER_BYTES
        file.write(pack_header(1))
    if (folder / LOCK_NAME).is_dir():
        (folder / LOCK_NAME).rmdir()
        (folder / LOCK_NAME).touch()


def dead(make_journal: MakeJournal, home: Path) -> Path:
    """What a process left that answered one request."""
    journal = make_journal(home / "journal")
    attempt = opened()
    journal.open(attempt)
    journal.close(closed(attempt))
    journal.stop()
    return journal.folder


@contextmanager
def recorder(database: BooksDatabase, root: Path) -> Iterator[RecorderThread]:
    running = RecorderThread(root, database.url, JournalSettings(), Metrics(), poll_s=0.005, housekeeping_s=0.02)
    running.start()
    yield running
    running.end(0)


@pytest.mark.parametrize("spoil", [of_a_later_release, not_to_be_locked])
def test_an_unreadable_journal_holds_up_budgets_and_no_other_journal_until_it_is_given_up(
    sqlite_url: str, make_journal: MakeJournal, tmp_path: Path, spoil: Spoil
) -> None:
    database = BooksDatabase(sqlite_url)
    spoilt, sound = dead(make_journal, tmp_path), dead(make_journal, tmp_path)
    spoil(spoilt)
    with recorder(database, spoilt.parent) as running:
        eventually(lambda: read_position(sound).complete_us is not None, "the other one is shipped")
        eventually(lambda: database.count("usage") == 1, "its row is there")
        assert running.inheriting
        give_up(spoilt)
        eventually(lambda: not running.inheriting, "nothing waits for it any more")
        mend(spoilt)
        take_back(spoilt)
        eventually(lambda: database.count("usage") == 2, "it is shipped after all")
        eventually(lambda: not running.inheriting, "and nothing is left")


@pytest.mark.parametrize("spoil", [of_a_later_release, not_to_be_locked])
async def test_an_operator_is_told_and_can_give_it_up_and_take_it_back(
    make_journal: MakeJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    folder = dead(make_journal, tmp_path)
    name = folder.name

    def metergate(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["journal", *arguments])
        return done.exit_code, done.output + str(done.exception or "")

    status, said = metergate("give-up", name)
    assert status != 0 and "can be read: start a gateway" in said
    spoil(folder)
    found = doctor.journal(tmp_path / "journal")
    assert found.health is Health.FAIL and name in found.detail and f"journal give-up {name}" in found.remedy
    (listed,) = list_journals(tmp_path / "journal")
    assert listed.state == "unreadable" and listed.trouble
    status, said = metergate("give-up", name)
    assert status == 0 and "is given up" in said and is_given_up(folder)
    assert doctor.journal(tmp_path / "journal").health is Health.WARN
    (listed,) = list_journals(tmp_path / "journal")
    assert listed.state == "given-up"
    status, said = metergate("give-up", name, "--json")
    assert json.loads(said) == {"process": name, "given_up": True, "trouble": listed.trouble, "folder": str(folder)}
    mend(folder)
    status, said = metergate("give-up", name, "--undo", "--json")
    assert status == 0 and not is_given_up(folder)
    assert json.loads(said) == {"process": name, "given_up": False, "trouble": "", "folder": str(folder)}
    found = doctor.journal(tmp_path / "journal")
    assert found.health is Health.OK and "1 of them wait" in found.detail
