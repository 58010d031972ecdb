"""A catalog over a real database, and keys made the way the admin API makes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import bump_catalog_version
from billing.teams import create_team
from billing.times import now_us
from gateway.access import repository
from gateway.access.keys import new_key, random_id
from gateway.access.pepper import Pepper
from gateway.access.repository import KeyPolicy, KeyRow
from gateway.catalog import Catalog

PEPPER = Pepper(b"pepper-of-the-tests-32-bytes-long", "the tests")


@dataclass(frozen=True, slots=True)
class Desk:
    """Writes to the database as another process would: no catalog here is told."""

    database: AsyncEngine

    async def team(self, name: str = "search", currency: str = "CNY") -> str:
        async with self.database.begin() as connection:
            return (await create_team(connection, name=name, settlement_currency=currency)).id

    async def key(self, team_id: str, policy: KeyPolicy | None = None) -> tuple[KeyRow, str]:
        new = new_key(PEPPER)
        async with self.database.begin() as connection:
            version = await bump_catalog_version(connection)
            row = KeyRow(
                f"key_{random_id()}", team_id, "ci", new.public_id, policy or KeyPolicy(), None, now_us(), version
            )
            await repository.insert_key(connection, row, new)
        return row, new.secret.reveal()

    async def revoke(self, key_id: str) -> None:
        async with self.database.begin() as connection:
            version = await bump_catalog_version(connection)
            await repository.revoke_key(connection, key_id, at_us=now_us(), version=version)

    async def rename(self, row: KeyRow, name: str) -> bool:
        async with self.database.begin() as connection:
            version = await bump_catalog_version(connection)
            row = replace(row, name=name)
            return await repository.update_key(connection, row.id, name=row.name, policy=row.policy, version=version)


async def eventually(condition: Callable[[], bool], what: str, deadline_s: float = 10.0) -> float:
    """Seconds until `condition` holds; fails with `what` after the deadline."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > deadline_s:
            pytest.fail(f"not within {deadline_s} s: {what}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


@pytest.fixture
def desk(database: AsyncEngine) -> Desk:
    return Desk(database)


@pytest.fixture
async def catalog(database: AsyncEngine) -> AsyncIterator[Catalog]:
    """Started, polling fast."""
    catalog = Catalog(database, PEPPER, poll_s=0.05)
    await catalog.start()
    yield catalog
    await catalog.stop()
