from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.metering.journal import Journal
from gateway.settings import JournalSettings
from tests.gateway.metering.books import BooksDatabase


def eventually(condition: Callable[[], bool], what: str, deadline_s: float = 20.0) -> None:
    """Returns as soon as `condition` holds; fails with `what` after the deadline."""
    until = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until:
            pytest.fail(f"not within {deadline_s} s: {what}")
        time.sleep(0.005)


@pytest.fixture
def make_journal(tmp_path: Path) -> Iterator[Callable[..., Journal]]:
    """Journals that are stopped at the end of the test."""
    made: list[Journal] = []

    def make(folder: Path | None = None, **settings: object) -> Journal:
        journal = Journal(folder or tmp_path / "journal", JournalSettings(**settings))  # type: ignore[arg-type]
        made.append(journal)
        return journal

    yield make
    for journal in made:
        journal.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB that can be filled to its last byte."""
    mount = tmp_path / "small-disk"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", mount], check=False).returncode
    ):
        pytest.skip("mounting a tmpfs needs privileges that this machine does not give; RLIMIT_FSIZE is tested instead")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest) -> BooksDatabase:
    return BooksDatabase(request.getfixturevalue(f"empty_{request.param}_url"))


@pytest.fixture
def database(database_url: str) -> BooksDatabase:
    return BooksDatabase(database_url)
