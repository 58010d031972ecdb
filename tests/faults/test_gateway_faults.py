"""Law: whatever dies under a real gateway in real traffic, the provider's book, the callers' word and our books agree.

Every run harms one gateway over one PostgreSQL and one Valkey; the runs share them, as the faults of a real night would.
`python -m bench.soak` draws hundreds of such runs at random.
"""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.metering.segments import POSITION_NAME, process_folders
from tests.faults import harm
from tests.faults.callers import Wish
from tests.faults.gateway_law import unsettled, violations
from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import Provider, Stage
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.metering.conftest import eventually

REST_S = 40.0
"""How long a harmed gateway may take until its books agree again."""
LEASE_S = 100.0
"""What a killed gateway had reserved is free after a minute."""
RECOVERY_S = 20.0
"""How long it may refuse requests after the reason is gone: a look every 0.25 s, on a machine that is busy otherwise."""
EVENTS = 6
"""A stream of four chunks has six events: the chunks, the finish and the usage."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """On a small disk of its own where this machine allows one, so that it can be filled."""
    with tempfile.TemporaryDirectory(prefix="metergate-faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chmod(folder, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        disk = folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(disk)]
        mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
        yield folder
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.stop()


@pytest.fixture(scope="module")
def database(folder: Path, postgresql_server: object) -> Iterator[OwnPostgresql]:
    server = OwnPostgresql(folder / "postgresql")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def stage(folder: Path, provider: Provider, database: OwnPostgresql) -> Iterator[Stage]:
    valkey = ValkeyServer(folder)
    valkey.start()
    stage = Stage(folder / "disk" / "home", database.url, provider, valkey)
    stage.database.migrate()
    try:
        stage.open()
        yield stage
        stage.gateway.stop()
    finally:
        stage.kill_everything()
        valkey.stop()


def answered(stage: Stage) -> bool:
    """Whether the gateway answers a request now."""
    return asyncio.run(stage.callers.ask(Wish(10, 3, True))).complete


def run(stage: Stage, fault: harm.Harm) -> None:
    """One fault run, and the law when everything has come to rest."""
    asyncio.run(fault(stage))
    found = ["the run has not been looked at"]

    def lawful() -> bool:
        found[:] = violations(stage)
        return not found

    try:
        eventually(lawful, "the law", REST_S)
    except pytest.fail.Exception:
        pytest.fail("\n".join([*found[:20], stage.gateway.log()]))


@pytest.mark.parametrize("after", range(EVENTS))
def test_rule_20_callers_leave_behind_each_event(stage: Stage, after: int) -> None:
    run(stage, harm.leaves(after))


def test_rule_20_callers_leave_before_there_is_anything_to_hear(stage: Stage) -> None:
    run(stage, harm.leave_at_once)


@pytest.mark.parametrize("after", range(EVENTS))
def test_rule_21_the_provider_breaks_off_behind_each_event(stage: Stage, after: int) -> None:
    run(stage, harm.cut(after))


def test_rule_21_the_provider_falls_silent_or_says_that_it_failed(stage: Stage) -> None:
    run(stage, harm.troubles)
    troubled = [heard for heard in stage.callers.heard if heard.wish.trouble]
    assert {heard.wish.trouble: heard.status for heard in troubled[:3]} == {
        "status=400": 400,
        "stall=2": 200,
        "error=2": 200,
    }
    assert not any(heard.complete for heard in troubled)


@pytest.mark.parametrize("time", range(5))
def test_the_gateway_is_killed_at_a_random_moment(stage: Stage, time: int) -> None:
    run(stage, harm.kill)


def test_the_gateway_is_killed_while_it_adopts_the_journal_of_the_dead(stage: Stage) -> None:
    run(stage, harm.kill_twice)


@pytest.mark.parametrize("time", range(2))
def test_rule_32_the_recorder_alone_is_killed(stage: Stage, time: int) -> None:
    before = set(stage.gateway.recorders())
    assert len(before) == 1
    run(stage, harm.kill_recorder)
    eventually(lambda: len(stage.gateway.recorders()) == 1, "another recorder runs")
    assert before.isdisjoint(stage.gateway.recorders())


def test_the_recorder_alone_is_frozen(stage: Stage) -> None:
    run(stage, harm.freeze_recorder)


def test_the_gateway_is_told_to_stop_in_the_middle_of_traffic(stage: Stage) -> None:
    run(stage, harm.stop)


@pytest.mark.parametrize("time", range(2))
def test_rule_15_the_database_is_frozen(stage: Stage, database: OwnPostgresql, time: int) -> None:
    run(stage, harm.freeze_database(database))


@pytest.mark.parametrize("time", range(2))
def test_rule_26_the_database_crashes_and_comes_back(stage: Stage, database: OwnPostgresql, time: int) -> None:
    run(stage, harm.crash_database(database))


def test_the_gateway_is_killed_while_the_database_is_away(stage: Stage, database: OwnPostgresql) -> None:
    run(stage, harm.kill_while_database_is_away(database))


@pytest.mark.parametrize("time", range(2))
def test_rule_15_the_limit_store_is_frozen(stage: Stage, time: int) -> None:
    run(stage, harm.freeze_limits)


@pytest.mark.parametrize("time", range(2))
def test_rule_15_the_limit_store_is_wiped(stage: Stage, time: int) -> None:
    run(stage, harm.wipe_limits)


def test_the_clock_is_set_back_by_an_hour(stage: Stage) -> None:
    run(stage, harm.clock_back)


def test_the_disk_of_the_journal_is_full(stage: Stage) -> None:
    if not os.path.ismount(stage.home.parent):
        pytest.skip("mounting a tmpfs needs privileges that this machine does not give")
    run(stage, harm.full_disk)
    eventually(lambda: answered(stage), "it takes requests again by itself", RECOVERY_S)
    run(stage, harm.nothing)


def test_the_budget_has_spent_what_the_rows_say_and_a_replay_changes_nothing(stage: Stage) -> None:
    run(stage, harm.nothing)
    found = unsettled(stage)

    def settled() -> bool:
        found[:] = unsettled(stage)
        return not found

    eventually(settled, f"{found}", LEASE_S)
    stage.gateway.stop()
    before = stage.database.digest()
    folders = process_folders(stage.home / "journal")
    assert folders
    for each in folders:
        (each / POSITION_NAME).unlink()
    stage.gateway.start()
    stage.gateway.wait_ready()
    run(stage, harm.leave_at_once)
    rows = dict.fromkeys(map(str, before[0]))
    assert rows.keys() <= dict.fromkeys(map(str, stage.database.digest()[0])).keys()


@pytest.mark.parametrize("bug", ["late-outcome", "no-idempotency"])
def test_the_harness_catches_a_planted_bug(bug: str, tmp_path: Path, provider: Provider, sqlite_url: str) -> None:
    provider.clear()
    stage = Stage(tmp_path / "home", sqlite_url, provider, planted=bug)
    try:
        stage.open()
        asyncio.run(harm.nothing(stage))
        complete = sum(heard.complete for heard in stage.callers.heard)
        assert complete
        if bug == "no-idempotency":
            eventually(lambda: stage.database.count("usage") >= complete, "they are shipped for the first time")
        stage.gateway.kill()
        stage.gateway.start()
        stage.gateway.wait_ready()
        stage.gateway.stop()
        found = violations(stage)
        if bug == "late-outcome":
            assert any("was answered with" in each and "status='lost'" in each for each in found), found
        else:
            assert any("has no row" in each for each in found), found
            assert stage.database.count("usage") > len(provider.book()), "what was shipped before is shipped again"
    finally:
        stage.kill_everything()
