"""The hourly job: it finds what differs, says so in metrics, and puts right what is derived."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from billing.ledger import record
from billing.times import now_us
from billing.usage import Usage
from gateway.metering.reconcile import Reconciliation, look
from gateway.metrics import Metrics
from tests.billing.helpers import rated_record, request_id


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(database_url)
    yield engine
    await engine.dispose()


async def test_drift_is_reported_and_repaired(engine: AsyncEngine) -> None:
    metrics = Metrics()
    job = Reconciliation(engine, metrics)

    def drifted(table: str) -> float | None:
        return metrics.registry.get_sample_value("metergate_drift", {"table": table})

    async with engine.begin() as connection:
        await record(connection, [rated_record(Usage(input=9, output=5), id_=request_id(now_us())) for _ in range(3)])
    assert await job.once() == []
    assert drifted("rollup_traffic") == 0
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE rollup_traffic SET requests = 2"))
        await connection.execute(text("UPDATE wallets SET balance_nano = 1"))
    assert {each.what for each in await job.once()} == {"rollup_traffic", "wallets"}
    assert (drifted("rollup_traffic"), drifted("rollup_money"), drifted("wallets")) == (1, 0, 1)
    assert metrics.registry.get_sample_value("metergate_drift_repaired_total") == 2
    assert await look(engine) == []


async def test_a_wallets_entry_is_no_derived_figure_it_is_reported_and_left_alone(engine: AsyncEngine) -> None:
    job = Reconciliation(engine, Metrics())
    async with engine.begin() as connection:
        await record(connection, [rated_record(Usage(input=9, output=5), id_=request_id(now_us()))])
        await connection.execute(text("UPDATE wallet_entries SET amount_nano = amount_nano - 7"))
        await connection.execute(text("UPDATE wallets SET balance_nano = balance_nano - 7"))
        entries = (await connection.execute(text("SELECT * FROM wallet_entries"))).all()
    for _ in range(2):
        assert [each.what for each in await job.once()] == ["wallet_entries"]
    async with engine.begin() as connection:
        assert (await connection.execute(text("SELECT * FROM wallet_entries"))).all() == entries


async def test_what_has_no_rows_left_is_reported_and_not_repaired(engine: AsyncEngine) -> None:
    job = Reconciliation(engine, Metrics())
    async with engine.begin() as connection:
        await record(connection, [rated_record(Usage(input=9, output=5), id_=request_id(now_us()))])
        await connection.execute(text("DELETE FROM usage_lines"))
        await connection.execute(text("DELETE FROM usage"))
    before = await job.once()
    assert {each.what for each in before} == {"rollup_traffic", "rollup_money", "wallet_entries"}
    assert await job.once() == before
