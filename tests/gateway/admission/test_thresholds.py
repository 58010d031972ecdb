"""Budgets that reach a threshold, over a real database: told once a period, in whichever process, before and after a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow
from billing.database import open_database
from billing.ledger import record
from billing.times import format_time, now_us
from billing.usage import Usage
from gateway.admission.memory import MemoryStore
from gateway.admission.periods import Periods
from gateway.admission.seeding import BudgetCatalog, Seeding
from gateway.admission.thresholds import Thresholds
from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.webhooks.tables import webhook_events
from gateway.webhooks.webhooks import Webhooks
from tests.billing.helpers import rated_record, request_id
from tests.gateway.admission.house import House


@pytest.fixture
async def house(sqlite_url: str) -> AsyncIterator[House]:
    engine = open_database(sqlite_url)
    built = await House.build(engine, MemoryStore())
    yield built
    await built.admission.stop()
    await engine.dispose()


@dataclass
class Process:
    """One gateway process, as far as it tells of thresholds."""

    webhooks: Webhooks
    thresholds: Thresholds
    metrics: Metrics

    @classmethod
    def of(cls, house: House) -> Process:
        metrics = Metrics()
        webhooks = Webhooks(house.database, metrics)
        thresholds = Thresholds(house.database, house.catalog, webhooks, metrics, [50, 80, 100])
        return cls(webhooks, thresholds, metrics)

    def counted(self, percent: int, scope: str = "team") -> float:
        labels = {"scope": scope, "percent": str(percent)}
        return self.metrics.registry.get_sample_value("metergate_budget_thresholds_total", labels) or 0


async def spend(house: House, percent: int, at_us: int | None = None, key: str = "key_a") -> None:
    """So many percent of 0.042 USD, in one request of the American team."""
    row = rated_record(
        Usage(output=percent * 1000), id_=request_id(at_us or now_us()), team=house.american.id, key=key, currency="USD"
    )
    async with house.database.begin() as connection:
        await record(connection, [row])


async def told(database: AsyncEngine) -> list[dict[str, Any]]:
    async with database.connect() as connection:
        bodies = await connection.scalars(select(webhook_events.c.body).order_by(webhook_events.c.created_at_us))
        return [msgspec.json.decode(body) for body in bodies]


async def looked(house: House, *processes: Process, at_us: int | None = None) -> list[tuple[str, int | None]]:
    """Every process looks at every budget; what has been told by then, by event id."""
    await asyncio.gather(*(each.thresholds.look(at_us or now_us()) for each in processes))
    await asyncio.gather(*(each.webhooks.round() for each in processes))
    return sorted((each["type"], each["data"].get("threshold_percent")) for each in await told(house.database))


async def test_each_threshold_is_told_once_a_period_by_one_process_and_never_again(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    budget = await house.budget("0.042", house.american, period="day", timezone="Asia/Kolkata", hard=False)
    processes, kind = [Process.of(house) for _ in range(3)], "budget.threshold"
    await spend(house, 49)
    assert await looked(house, *processes) == []
    await spend(house, 1)
    with caplog.at_level(logging.WARNING):
        assert await looked(house, *processes) == [(kind, 50)]
    assert caplog.messages == [
        f"budget {budget.id} (team {house.american.id}, day): 0.021 USD of 0.042 USD are spent, 50 % or more"
    ]
    await spend(house, 70)
    everything = [(kind, 50), (kind, 80), (kind, 100)]
    assert await looked(house, *processes) == everything
    assert await looked(house, *processes, Process.of(house)) == everything
    assert [sum(each.counted(percent) for each in processes) for percent in (50, 80, 100)] == [1, 1, 1]
    last = (await told(house.database))[-1]
    period = Periods().of(budget, now_us())
    assert last["id"] == f"budget/{budget.id}/{period.window.window}/{last['data']['threshold_percent']}"
    assert last["data"] | {"threshold_percent": 100} == {
        "budget_id": budget.id, "scope": "team", "scope_id": house.american.id, "threshold_percent": 100,
        "spent": "0.0504", "amount": "0.042", "currency": "USD", "hard": False, "period": "day", "timezone": "Asia/Kolkata",
        "period_start": format_time(period.start_us), "resets_at": format_time(period.end_us or 0),
    }  # fmt: skip
    tomorrow_us = (period.end_us or 0) + 1_000_000
    await spend(house, 85, tomorrow_us)
    assert len(await looked(house, *processes, at_us=tomorrow_us)) == 5


async def test_a_budget_may_have_its_own_thresholds_or_none(house: House) -> None:
    own = await house.budget("0.042", house.american, thresholds=[10, 200, 10])
    assert own.thresholds == (10, 200)
    await house.budget("0.042", house.american, thresholds=[])
    await house.budget("0", house.american)
    await house.budget("0.042", scope="key", scope_id="key_b", currency="USD", thresholds=[1])
    everybody = await house.budget("0.042", scope="all", scope_id=None, currency="USD", thresholds=[40])
    process = Process.of(house)
    await spend(house, 39)
    assert {each["data"]["budget_id"] for each in await told(house.database)} == set()
    assert await looked(house, process) == [("budget.threshold", 10)]
    await spend(house, 2)
    assert await looked(house, process) == [("budget.threshold", 10), ("budget.threshold", 40)]
    assert process.counted(40, "all") == 1
    assert house.catalog.snapshot.budgets.by_id[everybody.id].thresholds == (40,)


async def test_a_budget_in_use_is_told_of_as_the_seeding_reads_it(house: House) -> None:
    budget = await house.budget("0.042", house.american)
    process = Process.of(house)

    def known(budget_id: int) -> BudgetRow | None:
        return house.catalog.snapshot.budgets.by_id.get(budget_id)

    rates = house.catalog.snapshot.books.rates
    catalog = BudgetCatalog(known, lambda: rates, process.thresholds)
    seeding, window = Seeding(house.database, MemoryStore(), catalog), Periods().of(budget, now_us()).window
    seeding.used(window)
    seeding.start()
    await seeding.seed([window])
    await spend(house, 80)
    deadline = time.monotonic() + 20
    while len(await told(house.database)) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
        await process.webhooks.round()
    await seeding.stop()
    assert (process.counted(50), process.counted(80), process.counted(100)) == (1, 1, 0)


async def test_budgets_that_nobody_draws_on_are_looked_at_in_turn(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admission.thresholds.LOOKED_AT", 2)
    for percent in (10, 20, 30, 90, 90):
        await house.budget("0.042", house.american, thresholds=[percent])
    await spend(house, 50)
    process = Process.of(house)
    for expected in ([10, 20], [10, 20, 30], [10, 20, 30], [10, 20, 30]):
        assert [percent for _, percent in await looked(house, process)] == expected


async def test_the_first_refusal_of_a_hard_budget_is_told_once_a_period(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Told by what is left, not by a percentage: a hard budget never gets to its last nano."""
    budget = await house.budget("0.0005", house.american, period="day", thresholds=[])
    processes = [Process.of(house) for _ in range(2)]
    period, key = Periods().of(budget, now_us()), house.key(house.american)
    for process in (*processes, *processes):
        house.admission._listener = process.thresholds
        with pytest.raises(ApiError):
            await house.admit(key, n=2)
    with caplog.at_level(logging.WARNING):
        assert await looked(house, *processes) == [("budget.refused", None)]
    assert caplog.messages == [
        f"budget {budget.id} (team {house.american.id}, day): a request that could cost 0.0007 USD was refused, 0.0005 USD of "
        "0.0005 USD being left"
    ]
    (event,) = await told(house.database)
    assert event["id"] == f"budget/{budget.id}/{period.window.window}/refused"
    assert (event["data"]["left"], event["data"]["asked"]) == ("0.0005", "0.0007")
    labels = {"scope": "team", "percent": "refused"}
    counted = [
        each.metrics.registry.get_sample_value("metergate_budget_thresholds_total", labels) for each in processes
    ]
    assert sorted(count or 0 for count in counted) == [0, 1]
