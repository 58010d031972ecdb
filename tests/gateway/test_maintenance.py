"""Maintenance: months ahead are made, old rows go in chunks, sums and statements stay."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.ledger import record
from billing.partitions import ensure_partitions
from billing.retention import count_usage_before, delete_usage_before, drop_empty_partitions
from billing.times import DAY_US, now_us
from billing.usage import Usage
from gateway.maintenance import Maintenance
from gateway.settings import RetentionSettings, SettingsError, load_settings
from tests.billing.world import make_world, request

OLD_US = now_us() - 100 * DAY_US


async def counts(engine: AsyncEngine) -> dict[str, int]:
    async with engine.connect() as connection:
        return {
            table: int(await connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)
            for table in ("usage", "usage_lines", "attempts")
        }


async def fill(engine: AsyncEngine, old: int, young: int) -> None:
    world = await make_world(engine)
    books = await world.books()
    async with engine.begin() as connection:
        await ensure_partitions(connection, OLD_US, months_ahead=0)
        await record(
            connection,
            [
                request(books, world.team, "deepseek-chat", Usage(output=1), moment_us)
                for count, moment_us in ((old, OLD_US), (young, now_us()))
                for _ in range(count)
            ],
        )


async def test_rule_33_old_rows_go_in_chunks_and_their_sums_stay(database: AsyncEngine) -> None:
    await fill(database, old=25, young=3)
    before_us = now_us() - 90 * DAY_US
    async with database.begin() as connection:
        assert await count_usage_before(connection, before_us) == 25
        held = await connection.scalar(text("SELECT sum(settled_nano) FROM rollup_money"))
    chunks: list[int] = []
    while not chunks or chunks[-1]:
        async with database.begin() as connection:
            chunks.append(await delete_usage_before(connection, before_us, limit=10))
    assert chunks == [10, 10, 5, 0]
    assert await counts(database) == {"usage": 3, "usage_lines": 3, "attempts": 3}
    async with database.begin() as connection:
        assert await connection.scalar(text("SELECT sum(settled_nano) FROM rollup_money")) == held
        dropped = await drop_empty_partitions(connection, before_us)
        if connection.dialect.name == "postgresql":
            assert sorted(name.rsplit("_", 2)[0] for name in dropped) == ["attempts", "usage", "usage_lines"]
        else:
            assert dropped == []


async def test_a_process_makes_partitions_and_lets_old_rows_go_by_itself(database: AsyncEngine) -> None:
    await fill(database, old=3, young=2)
    if database.dialect.name == "postgresql":
        async with database.begin() as connection:
            for table in ("usage", "usage_lines", "attempts"):
                names = await connection.execute(
                    text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:t AS regclass)"),
                    {"t": table},
                )
                newest = max(name for name in names.scalars() if not name.endswith("_default"))
                await connection.execute(text(f"DROP TABLE {newest}"))
    maintenance = Maintenance(database, RetentionSettings(usage_days=90))
    maintenance.start()
    deadline_s = time.monotonic() + 20
    while maintenance.rounds == 0 and time.monotonic() < deadline_s:
        await asyncio.sleep(0.01)
    await maintenance.stop()
    assert (maintenance.rounds, maintenance.deleted) == (1, 3)
    assert maintenance.folds >= 2  # the hour of the old rows, and the time since
    assert (await counts(database))["usage"] == 2
    async with database.begin() as connection:
        assert await ensure_partitions(connection, now_us()) == []


async def test_without_a_setting_nothing_is_deleted(database: AsyncEngine) -> None:
    await fill(database, old=2, young=0)
    maintenance = Maintenance(database, RetentionSettings())
    await maintenance.round()
    assert (await counts(database))["usage"] == 2


@pytest.mark.parametrize(
    ("days", "hours", "said"), [("61", "48", ">= 62"), ("62", "1488", "longer than journal.retain_hours")]
)
def test_rows_are_kept_longer_than_journals(days: str, hours: str, said: str) -> None:
    environ = {"METERGATE_RETENTION__USAGE_DAYS": days, "METERGATE_JOURNAL__RETAIN_HOURS": hours}
    with pytest.raises(SettingsError, match=said):
        load_settings(None, environ)
