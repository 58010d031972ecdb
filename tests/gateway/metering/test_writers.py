"""SQLite's one writer's place: the recorder, who never rests, lets others go first, also those of other processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database, reading
from billing.writers import anybody_waits, waiting
from gateway.metering.pace import begin_last

WAIT = (
    "import sys; from billing.writers import waiting\nwith waiting(sys.argv[1]): print(1, flush=True); sys.stdin.read()"
)


@pytest.fixture
async def sqlite_database(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(sqlite_url)
    yield engine
    await engine.dispose()


def path_of(database: AsyncEngine) -> str:
    path = database.url.database
    assert path is not None
    return path


async def until_somebody_waits(path: str) -> None:
    deadline_s = time.monotonic() + 20
    while not anybody_waits(path):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.002)


async def test_whoever_waits_goes_before_the_recorder(sqlite_database: AsyncEngine) -> None:
    path, order = path_of(sqlite_database), []

    async def admin() -> None:
        async with sqlite_database.begin():
            order.append("admin")

    async def recorder() -> None:
        async with begin_last(sqlite_database, patience_s=30):
            order.append("recorder")

    async with sqlite_database.begin():
        first = asyncio.create_task(admin())
        await until_somebody_waits(path)
        second = asyncio.create_task(recorder())
        await asyncio.sleep(0)
    await asyncio.gather(first, second)
    assert order == ["admin", "recorder"]
    assert not anybody_waits(path)


async def test_readers_wait_for_nobody_and_nobody_for_them(sqlite_database: AsyncEngine) -> None:
    async with sqlite_database.begin(), reading(sqlite_database) as connection:
        assert (await connection.exec_driver_sql("SELECT count(*) FROM usage")).scalar() == 0
        assert not anybody_waits(path_of(sqlite_database))


async def test_patience_ends(sqlite_database: AsyncEngine) -> None:
    with waiting(path_of(sqlite_database)):
        async with begin_last(sqlite_database, patience_s=0) as connection:
            assert (await connection.exec_driver_sql("SELECT count(*) FROM usage")).scalar() == 0


def test_where_no_file_can_be_kept_nobody_is_seen_and_nothing_fails(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "gone" / "metergate.db")
    with waiting(nowhere):
        assert not anybody_waits(nowhere)


def test_a_waiting_process_is_seen_until_it_dies(sqlite_url: str) -> None:
    path = make_url(sqlite_url).database
    assert path is not None
    assert not anybody_waits(path)
    with subprocess.Popen(
        [sys.executable, "-c", WAIT, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert anybody_waits(path)
        other.kill()
        other.wait()
    assert not anybody_waits(path)
