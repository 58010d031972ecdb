"""Law: gateways behind a balancer are restarted one by one and killed under load, and no caller but the killed one's notices."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet, rolling
from tests.faults.gateway_law import unsettled
from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import Provider
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.metering.conftest import eventually


@pytest.fixture(scope="module")
def fleet(postgresql_server: object) -> Iterator[Fleet]:
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed (Debian: apt install haproxy)")
    with tempfile.TemporaryDirectory(prefix="metergate-fleet-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chmod(folder, stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH | stat.S_IRGRP | stat.S_IROTH)
        provider, valkey, database = Provider(), ValkeyServer(folder), OwnPostgresql(folder / "postgresql")
        valkey.start()
        fleet = Fleet(folder / "homes", database.url, provider, valkey, 3)
        fleet.database.migrate()
        try:
            fleet.open()
            yield fleet
            fleet.stop()
        finally:
            fleet.kill_everything()
            valkey.stop()
            provider.stop()
            database.remove()


def test_a_rolling_restart_and_a_death_cost_nobody_else_an_answer(fleet: Fleet) -> None:
    died = asyncio.run(rolling(fleet, abreast=6, rounds=1, deaths=1))
    assert fleet.at_rest(60.0) == []
    assert len(fleet.served) > 20 and fleet.failed(died) == []
    eventually(lambda: not unsettled(fleet), f"{unsettled(fleet)}", 60.0)


def test_rule_28_a_revoked_key_stops_on_every_replica(fleet: Fleet) -> None:
    assert fleet.revoked_within_s() < 5.0
