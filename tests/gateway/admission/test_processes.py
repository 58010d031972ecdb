"""Rules 11 and 15 with five processes on one Valkey, while it is killed, frozen, wiped and put back from an old copy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from billing.database import open_database, reading
from billing.ledger import spent
from gateway.admission.claims import BudgetState
from gateway.admission.valkey import ValkeyStore
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.admission.worker import TOKEN_NANO, WINDOW, Job

PREFIX = "{five}"
PROCESSES = 5
COST_TOKENS = 1001
COST = COST_TOKENS * TOKEN_NANO


@dataclass
class Outcome:
    admitted: int
    settled_nano: int
    unavailable: int
    slowest_ms: float
    state: BudgetState
    parallel: int
    processes_that_settled: int


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    """Started once: they take far longer to start than to play."""
    command = [sys.executable, "-m", "tests.gateway.admission.worker"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    yield workers
    for worker in workers:
        worker.kill()
        worker.communicate()


def tell(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{line}\n")
    worker.stdin.flush()


def answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


def play(workers: list[subprocess.Popen[str]], server: ValkeyServer, job: Job, harm: Callable[[], None]) -> Outcome:
    """Five workers until every one has tried for a while; `harm` befalls the server in the middle."""
    for worker in workers:
        tell(worker, msgspec.json.encode(job).decode())
    try:
        assert [answer(worker) for worker in workers] == ["ready\n"] * PROCESSES
        harm()
        asyncio.run(_until_spent(job.database_url, job.limit_nano - COST, time.monotonic() + 30))
        asyncio.run(_until_seeded(server, time.monotonic() + 30))
    finally:
        for worker in workers:
            tell(worker, "over")
        reports = [json.loads(answer(worker)) for worker in workers]
    view = asyncio.run(_view(server))
    return Outcome(
        sum(report["admitted"] for report in reports),
        sum(report["settled_nano"] for report in reports),
        sum(report["unavailable"] for report in reports),
        max(report["slowest_ms"] for report in reports),
        view[0],
        view[1],
        sum(report["settled"] > 0 for report in reports),
    )


async def _view(server: ValkeyServer) -> tuple[BudgetState, int]:
    store = ValkeyStore(server.url, prefix=PREFIX, timeout_s=5)
    await store.start()
    try:
        view = await store.view("key_a", [WINDOW])
        return view.budgets[WINDOW], view.counters.parallel
    finally:
        await store.stop()


async def _until_seeded(server: ValkeyServer, deadline: float) -> None:
    """Whatever was restored, the workers that still ask have had the budget counted again."""
    while not (await _view(server))[0].seeded:
        assert time.monotonic() < deadline, "the budget was not counted again in time"
        await asyncio.sleep(0.1)


async def _until_spent(database_url: str, nano: int, deadline: float) -> None:
    """The rows themselves say that the budget has no room left."""
    database = open_database(database_url)
    try:
        while time.monotonic() < deadline:
            async with reading(database) as connection:
                total = await spent(connection, "team", "team_a", "CNY", 0)
            if total.nano > nano:
                return
            await asyncio.sleep(0.2)
    finally:
        await database.dispose()
    raise AssertionError(f"the budget was not used up in time: {total}")


def harms(server: ValkeyServer) -> dict[str, Callable[[], None]]:
    def wait() -> None:
        time.sleep(0.3)  # not for anything: some requests are to be in the middle

    def freeze() -> None:
        wait()
        server.freeze()
        time.sleep(1.5)
        server.thaw()

    def kill() -> None:
        wait()
        server.kill()
        time.sleep(0.5)
        server.start()

    def wipe() -> None:
        wait()
        server.wipe()

    def old_copy() -> None:
        wait()
        assert server.command("SAVE") == b"+OK"
        time.sleep(0.5)
        server.kill()
        server.start()

    return {"nothing": wait, "frozen": freeze, "killed": kill, "wiped": wipe, "old copy": old_copy}


@pytest.mark.parametrize("harm", ["nothing", "frozen", "killed", "wiped", "old copy"])
def test_rule_11_and_15_five_processes_spend_a_budget_for_137_to_the_nano(
    workers: list[subprocess.Popen[str]], server: ValkeyServer, sqlite_url: str, harm: str
) -> None:
    limit = 137 * COST + COST - 1
    job = Job(server.url, PREFIX, sqlite_url, limit, COST_TOKENS, mixed=False)
    outcome = play(workers, server, job, harms(server)[harm])
    assert outcome.settled_nano == 137 * COST
    assert outcome.state == BudgetState(True, 137 * COST, 0)
    assert outcome.parallel == 0
    assert outcome.processes_that_settled >= 2
    if harm in ("frozen", "killed"):
        assert outcome.unavailable > 0
    assert outcome.slowest_ms < 2000


def test_rule_12_with_releases_and_cheaper_answers_a_wiped_server_exceeds_nothing_and_reserves_nothing(
    workers: list[subprocess.Popen[str]], server: ValkeyServer, sqlite_url: str
) -> None:
    limit = 60 * COST
    job = Job(server.url, PREFIX, sqlite_url, limit, COST_TOKENS, mixed=True)
    outcome = play(workers, server, job, harms(server)["wiped"])
    assert limit - COST < outcome.settled_nano <= limit
    assert outcome.state == BudgetState(True, outcome.settled_nano, 0)
    assert outcome.parallel == 0
