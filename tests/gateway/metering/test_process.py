"""The recorder's process: it ships what its gateway journals, comes back when killed, and ends with its gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.metering.journal import Journal
from gateway.metering.position import read_position
from gateway.metering.process import RecorderProcess
from gateway.metering.progress import lag
from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from tests.e2e.product import alive
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.records import closed, opened

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(0.01)


def answer(journal: Journal, count: int) -> None:
    for _ in range(count):
        attempt = opened()
        journal.open(attempt)
        journal.close(closed(attempt))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal", JournalSettings())


@pytest.fixture
async def recorder(journal: Journal, sqlite_url: str) -> AsyncIterator[RecorderProcess]:
    recorder = RecorderProcess(journal, journal.folder.parent, sqlite_url, JournalSettings(), Metrics())
    recorder.start()
    yield recorder
    journal.stop()
    await recorder.stop(0.0)


async def test_a_killed_recorder_comes_back_and_every_request_is_one_row(
    journal: Journal, recorder: RecorderProcess, sqlite_url: str
) -> None:
    for round_ in range(3):
        answer(journal, 50)
        await until(
            lambda: recorder.pid is not None and lag(journal, recorder.progress).unshipped_bytes == 0, "shipped"
        )
        killed = recorder.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        answer(journal, 1)
        await until(lambda: recorder.restarts > round_ and recorder.pid not in (None, killed), "it is started again")  # noqa: B023
    journal.open(opened())
    journal.stop()
    assert await recorder.stop()
    database = BooksDatabase(sqlite_url)
    assert await asyncio.to_thread(database.count, "usage", "status = 'completed'") == 153
    assert await asyncio.to_thread(database.count, "usage", "status = 'lost'") == 1
    assert read_position(journal.folder).complete_us is not None


async def test_a_recorder_that_stands_still_in_the_midst_is_replaced_and_nothing_is_doubled(
    journal: Journal, sqlite_url: str
) -> None:
    """Stopped wherever it is (it may hold a transaction), it comes back to life when its successor has long gone on."""
    metrics = Metrics()
    recorder = RecorderProcess(journal, journal.folder.parent, sqlite_url, JournalSettings(), metrics, beat_s=0.3)
    recorder.start()
    for round_ in range(2):
        answer(journal, 1)
        await until(lambda: lag(journal, recorder.progress).unshipped_bytes == 0, "one is running")
        hung = recorder.pid
        assert hung is not None
        answer(journal, 200)
        os.kill(hung, signal.SIGSTOP)
        answer(journal, 1)
        await until(lambda: recorder.restarts > round_ and recorder.pid not in (None, hung), "it is replaced")  # noqa: B023
        assert not alive(hung)
    assert metrics.recorder_restarts._value.get() == recorder.restarts >= 2
    journal.stop()
    assert await recorder.stop()
    database = BooksDatabase(sqlite_url)
    assert await asyncio.to_thread(database.count, "usage", "status = 'completed'") == 2 * 202
    assert await asyncio.to_thread(database.count, "usage") == 2 * 202


async def test_a_recorder_whose_database_is_away_is_not_taken_for_hung(journal: Journal) -> None:
    recorder = RecorderProcess(
        journal, journal.folder.parent, "postgresql://nobody@127.0.0.1:9/none", JournalSettings(), Metrics(), beat_s=0.3
    )
    begun_s = time.monotonic()
    recorder.start()
    answer(journal, 3)
    await until(lambda: recorder.pid is not None, "it runs")
    while (waited_s := lag(journal, recorder.progress).seconds) < 4.0:
        await recorder.refresh()
        assert waited_s <= time.monotonic() - begun_s + 1.0, "asked before its first look it makes no figure up"
        await asyncio.sleep(0.05)
    assert recorder.restarts == 0
    journal.stop()
    assert not await recorder.stop(0.0)


async def test_what_it_counts_is_in_the_gateways_metrics_and_outlives_it(journal: Journal, sqlite_url: str) -> None:
    metrics = Metrics()
    recorder = RecorderProcess(journal, journal.folder.parent, sqlite_url, JournalSettings(), metrics)
    recorder.start()
    answer(journal, 7)

    def rows() -> float:
        return sum(
            sample.value
            for family in metrics.collect()
            for sample in family.samples
            if sample.name == "metergate_recorder_rows_total"
        )

    await until(lambda: lag(journal, recorder.progress).unshipped_bytes == 0, "shipped")
    await recorder.refresh()
    assert rows() == 7
    journal.stop()
    assert await recorder.stop()
    assert rows() == 7
    assert sum(s.value for f in metrics.collect() for s in f.samples if s.name == "metergate_journal_writable") == 0


async def test_without_dead_journals_nobody_waits_for_it_to_look(journal: Journal, recorder: RecorderProcess) -> None:
    """A gateway alone in its folder knows at once that it inherits nothing."""
    assert not recorder.inheriting
    beside = Journal(journal.folder.parent, JournalSettings())
    beside.open(opened())
    beside.stop()
    heir = RecorderProcess(journal, journal.folder.parent, "sqlite://", JournalSettings(), Metrics())
    assert heir.inheriting


GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.metering.journal import Journal
from gateway.metering.process import RecorderProcess
from gateway.metrics import Metrics
from gateway.settings import JournalSettings

async def main(root, url):
    journal = Journal(Path(root), JournalSettings())
    recorder = RecorderProcess(journal, Path(root), url, JournalSettings(), Metrics())
    recorder.start()
    while recorder.pid is None:
        await asyncio.sleep(0.01)
    print(recorder.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_it_ignores_the_terminal_and_dies_with_its_gateway(tmp_path: Path, sqlite_url: str) -> None:
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(tmp_path / "journal"), sqlite_url], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert gateway.stdout is not None
    with gateway.stdout:
        pid = int(gateway.stdout.readline())
    await until(lambda: _ignores(pid, signal.SIGTERM), "it ignores SIGTERM")
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, each)
    assert alive(pid)
    gateway.kill()
    gateway.wait()
    await until(lambda: not alive(pid), "the recorder is gone")


def _ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(mask >> (number - 1) & 1)


def test_neither_torch_nor_the_doors_web_framework_is_imported_by_it() -> None:
    code = "import gateway.metering.recording, sys; print({'torch', 'litestar', 'uvicorn', 'jinja2'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
