"""Rules 11 and 15 with whole processes: five gateways on PostgreSQL and Valkey, and more callers at once than there is money for.

`python -m bench.admission` is the long form.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections import Counter
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


@pytest.mark.timeout(300)
async def test_what_budgets_reach_is_told_by_one_of_five_processes(fleet: Fleet) -> None:
    """Every budget of this module is used up: 50 and 80 percent and the first refusal of each, and not one twice."""
    await asyncio.wait_for(fleet.run("told", 60, 17), 250)
    ((budgets,),) = await asyncio.to_thread(fleet.database.rows, "SELECT count(*) FROM budgets")
    deadline = time.monotonic() + 60
    while (await asyncio.to_thread(fleet.database.rows, "SELECT count(*) FROM webhook_events"))[0][0] < 3 * budgets:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    counted: Counter[str] = Counter()
    for gateway in fleet.gateways:
        page = await asyncio.to_thread(text_of, f"http://127.0.0.1:{gateway.port}/metrics")
        for percent, count in re.findall(
            r'metergate_budget_thresholds_total\{percent="(\w+)",scope="team"\} (\d+)', page
        ):
            counted[percent] += int(count)
    assert counted == {"50": budgets, "80": budgets, "refused": budgets}


def text_of(url: str) -> str:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30) as answer:
        return str(answer.read(), "utf-8")
