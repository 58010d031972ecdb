"""The audit log is looked at without being asked, and whoever gets round the gateway is found, on both databases."""

from __future__ import annotations

import asyncio
import logging

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import doctor_database
from gateway.admin.tables import audit_head, audit_log
from gateway.audit_watch import AuditWatch
from gateway.doctor_finding import Health
from gateway.metrics import Metrics
from gateway.services import build_services
from gateway.settings import Settings
from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.metering.threaded import in_a_thread


class Watched:
    """A watch that looks at everything each time, two entries a batch, and its metrics."""

    def __init__(self, database: AsyncEngine, whole_s: float = 0.0) -> None:
        self.metrics = Metrics()
        self.watch = AuditWatch(database, self.metrics, every_s=0.01, whole_s=whole_s, batch=2, pause_s=0.0)

    async def finds(self) -> tuple[int, str | None]:
        chain = await self.watch.once()
        assert self.gauge == (chain.broken is not None)
        return chain.entries, chain.broken

    @property
    def gauge(self) -> float | None:
        return self.metrics.registry.get_sample_value("metergate_audit_chain_broken")


async def past_the_gateway(database: AsyncEngine, *changes: sa.Executable) -> None:
    async with database.begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(sa.text("ALTER TABLE audit_log DISABLE TRIGGER ALL"))
        else:
            for event in ("update", "delete"):
                await connection.execute(sa.text(f"DROP TRIGGER IF EXISTS audit_log_no_{event}"))
        for change in changes:
            await connection.execute(change)


def renamed(sequence: int, actor: str) -> sa.Executable:
    return audit_log.update().where(audit_log.c.sequence == sequence).values(actor=actor)


async def test_an_entry_that_was_changed_is_found_and_said_once_until_it_is_put_right(
    gateway: Gateway, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    watched, newest_only = Watched(gateway.database), Watched(gateway.database, whole_s=86_400)
    assert await watched.finds() == (0, None)
    for number in range(5):
        await operator.team(f"t{number}")
    assert await watched.finds() == await newest_only.finds() == (5, None)
    await past_the_gateway(gateway.database, renamed(2, "nobody"))
    changed = "entry 2 is not what was written: its hash differs"
    assert await newest_only.finds() == (5, None), "the whole chain is not due"
    assert await watched.finds() == await watched.finds() == (1, changed)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said == [f"the audit log is not what was written: {changed}"]
    found = await doctor_database.audit(gateway.settings)
    assert (found.health, changed in found.detail) == (Health.FAIL, True)
    await past_the_gateway(gateway.database, renamed(2, "admin"))
    assert await watched.finds() == (5, None)
    found = await doctor_database.audit(gateway.settings)
    assert (found.health, found.detail) == (Health.OK, "5 entries, each as it was written")


async def test_a_log_that_was_cut_off_with_its_head_is_shorter_than_it_was(
    gateway: Gateway, operator: Operator
) -> None:
    watched = Watched(gateway.database)
    for number in range(4):
        await operator.team(f"t{number}")
    assert await watched.finds() == (4, None)
    third = sa.select(audit_log.c.hash).where(audit_log.c.sequence == 3).scalar_subquery()
    await past_the_gateway(
        gateway.database,
        audit_log.delete().where(audit_log.c.sequence == 4),
        audit_head.update().values(sequence=3, hash=third),
    )
    assert (await operator.get("/audit/check"))["whole"] is True, "who looks for the first time cannot know"
    shorter = "the log ends at entry 3, but entry 4 was there before"
    assert await watched.finds() == await watched.finds() == (4, shorter)
    await operator.team("another fourth entry")
    await operator.team("fifth")
    assert await watched.finds() == (4, "entry 5 does not follow the hash of the one before it")


async def test_what_is_written_while_it_looks_is_no_fault(gateway: Gateway, operator: Operator) -> None:
    watched = Watched(gateway.database)
    writing = asyncio.create_task(write(operator))
    looks = 0
    while not writing.done():
        assert (await watched.finds())[1] is None
        assert (await operator.get("/audit/check"))["broken"] is None
        looks += 1
    await writing
    assert looks > 1
    assert await watched.finds() == (25, None)


async def write(operator: Operator) -> None:
    for number in range(25):
        await operator.team(f"t{number}")


async def test_it_looks_by_itself_and_a_database_that_is_away_is_no_fault(
    gateway: Gateway, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator.team()
    watched = Watched(gateway.database)
    async with gateway.database.begin() as connection:
        await connection.execute(sa.text("ALTER TABLE audit_head RENAME TO away"))
    watched.watch.start()
    async with asyncio.timeout(30):
        while not any("not checked this time" in message for message in caplog.messages):
            await asyncio.sleep(0.01)
        assert watched.gauge == 0
        async with gateway.database.begin() as connection:
            await connection.execute(sa.text("ALTER TABLE away RENAME TO audit_head"))
        await past_the_gateway(gateway.database, audit_log.delete())
        while watched.gauge != 1:
            await asyncio.sleep(0.01)
    await watched.watch.stop()


async def test_a_gateway_looks_from_its_start_on(settings: Settings) -> None:
    services = await build_services(settings, in_a_thread)
    await past_the_gateway(services.database, audit_head.update().values(sequence=1))
    await services.start()
    async with asyncio.timeout(30):
        while services.metrics.registry.get_sample_value("metergate_audit_chain_broken") != 1:
            await asyncio.sleep(0.01)
    await services.stop()
