"""One gateway process's admission, run by test_processes.py as `python -m tests.gateway.admission.worker`.

A line of its standard input is a `Job`: it admits, settles and records one request after the other in many tasks until the next
line comes, then waits until its store owes nothing, counts the budget once more and prints its figures as JSON. Then it takes
the next job.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow
from billing.database import open_database
from billing.ledger import record
from billing.usage import Usage
from gateway.admission.claims import BudgetWindow, Charge, Claim, Granted, Refused, Scope, Unseeded
from gateway.admission.limits import Limits
from gateway.admission.seeding import BudgetCatalog, Seeding
from gateway.admission.shared import SharedStore
from gateway.admission.store import StoreUnavailable
from gateway.admission.valkey import ValkeyStore
from gateway.ids import new_request_id
from tests.billing.helpers import FOUNDING, rated_record

TOKEN_NANO = 420
"""One output token on the founding books."""
WINDOW = BudgetWindow(1, "0-")
TASKS = 20


class Job(msgspec.Struct, frozen=True):
    url: str
    prefix: str
    database_url: str
    limit_nano: int
    cost_tokens: int
    mixed: bool
    """Whether some requests are released and others cost less than was reserved."""


@dataclass
class Figures:
    admitted: int = 0
    settled: int = 0
    released: int = 0
    refused: int = 0
    unavailable: int = 0
    settled_nano: int = 0
    slowest_ms: float = 0.0


async def run(job: Job) -> Figures:
    database = open_database(job.database_url)
    store = SharedStore(ValkeyStore(job.url, prefix=job.prefix, timeout_s=0.3), "closed")
    row = BudgetRow(1, "team", "team_a", job.limit_nano, "CNY", "total", "UTC", True)
    seeding = Seeding(database, store, BudgetCatalog(lambda budget_id: row, lambda: FOUNDING.rates))
    await store.start()
    seeding.start()
    figures = Figures()
    over = asyncio.Event()
    work = [asyncio.create_task(_requests(store, seeding, database, job, figures, over)) for _ in range(TASKS)]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    over.set()
    await asyncio.gather(*work)
    deadline = time.monotonic() + 20
    while store.owes and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    await seeding.stop()
    await seeding.seed([WINDOW])  # a row may have overtaken its settlement, which counts twice until the next round
    await store.stop()
    await database.dispose()
    return figures


async def _requests(
    store: SharedStore, seeding: Seeding, database: AsyncEngine, job: Job, figures: Figures, over: asyncio.Event
) -> None:
    scope, cost = Scope("key_a", Limits(None, None, 60)), job.cost_tokens * TOKEN_NANO
    while not over.is_set():
        seeding.used(WINDOW)
        charge = Charge(1, cost, job.limit_nano, WINDOW.window, None, True)
        claim = Claim(new_request_id(), (scope,), 0, (charge,), 30_000_000)
        began_s = time.monotonic()
        try:
            answer: Any = await store.admit(claim)
            if isinstance(answer, Unseeded):
                await seeding.seed(answer.windows)
                continue
        except StoreUnavailable:
            figures.unavailable += 1
            figures.slowest_ms = max(figures.slowest_ms, (time.monotonic() - began_s) * 1000)
            await asyncio.sleep(0.05)
            continue
        if isinstance(answer, Refused):
            figures.refused += 1
            await asyncio.sleep(0.3)
            continue
        assert isinstance(answer, Granted)
        figures.admitted += 1
        await asyncio.sleep(random.random() * 0.05)
        if job.mixed and random.random() < 0.3:
            await store.release(claim)
            figures.released += 1
            continue
        used = random.randint(1, job.cost_tokens) if job.mixed else job.cost_tokens
        await store.settle(claim, 0, {1: used * TOKEN_NANO})
        figures.settled += 1
        figures.settled_nano += used * TOKEN_NANO
        await _record(database, claim, used)


async def _record(database: AsyncEngine, claim: Claim, tokens: int) -> None:
    """What the recorder does a moment later."""
    row = rated_record(Usage(output=tokens), id_=claim.request_id)
    while True:
        try:
            async with database.begin() as connection:
                await record(connection, [row])
            return
        except SQLAlchemyError:
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    while line := sys.stdin.readline():
        done = asyncio.run(run(msgspec.json.decode(line, type=Job)))
        print(json.dumps(asdict(done)), flush=True)
