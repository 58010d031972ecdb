"""Rules 11 and 15 with whole processes: five gateways on PostgreSQL and Valkey, and more callers at once than there is money for.

`python -m bench.admission` is the long form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.faults.stage import Provider
from tests.fixtures.databases import PostgresqlServer
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.admission.fleet import Fleet, Harm, frozen, killed, wiped


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgresql_server: PostgresqlServer) -> Iterator[Fleet]:
    url = postgresql_server.create(migrated=True)
    folder = tmp_path_factory.mktemp("fleet")
    valkey, provider = ValkeyServer(folder), Provider()
    valkey.start()
    fleet = Fleet(folder / "gateways", url, provider, 5, valkey)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()
        provider.stop()
        valkey.stop()
        postgresql_server.drop(url)


@pytest.mark.timeout(300)
async def test_rule_11_five_processes_admit_exactly_as_many_as_have_room(fleet: Fleet) -> None:
    run = await asyncio.wait_for(fleet.run("calm", 1000, 137), 250)
    assert run.wrong() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("harm", [killed, frozen, wiped])
async def test_rule_15_nothing_is_free_and_nothing_is_lost_whatever_happens_to_the_store(
    fleet: Fleet, harm: Harm
) -> None:
    run = await asyncio.wait_for(fleet.run(harm.__name__, 300, 137, harm), 250)
    assert run.wrong() == []
