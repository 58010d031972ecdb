from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import create_budget
from billing.database import open_database
from billing.teams import update_team
from gateway.access.authenticator import Authenticator
from gateway.access.keys import digest
from gateway.access.pepper import Pepper, PepperError
from gateway.catalog import POLL_S, Catalog, NotLoaded
from gateway.database import upgrade
from gateway.errors import ApiError
from tests.gateway.access.conftest import PEPPER, Desk, catalog, desk, eventually

__all__ = ["catalog", "desk"]


def known(catalog: Catalog, key: str) -> bool:
    return digest(PEPPER, key.encode()) in catalog.snapshot.keys


async def hide(database: AsyncEngine, hidden: bool, table: str = "catalog_version") -> None:
    """An outage as the catalog sees it: its reads fail, and succeed again."""
    old, new = (table, f"{table}_away") if hidden else (f"{table}_away", table)
    async with database.begin() as connection:
        await connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))


async def test_what_another_process_writes_is_known_after_a_poll(catalog: Catalog, desk: Desk) -> None:
    row, key = await desk.key(await desk.team())
    await eventually(lambda: known(catalog, key), "the key is known")
    identity = catalog.snapshot.keys[digest(PEPPER, key.encode())]
    assert (identity.key_id, identity.settlement_currency, identity.revoked) == (row.id, "CNY", False)


async def test_rule_28_a_revoked_key_is_refused_from_the_first_poll_after_it_and_polls_are_half_a_second_apart(
    database: AsyncEngine, desk: Desk
) -> None:
    """Within a second, then, as long as a poll takes less than half of one; stated so that a busy machine can prove it too."""
    assert POLL_S == 0.5
    catalog = Catalog(database, PEPPER)
    await catalog.start()
    try:
        row, key = await desk.key(await desk.team())
        await catalog.refresh()
        authenticator = Authenticator(catalog, PEPPER)
        headers = [(b"x-api-key", key.encode())]
        authenticator.identify(headers, None)
        await desk.revoke(row.id)
        revoked_at_s = time.monotonic()
        await eventually(lambda: catalog.age_s() < time.monotonic() - revoked_at_s, "a poll began after the revocation")
        assert refused(authenticator, headers)
        assert not await desk.rename(row, "back again")
        await catalog.refresh()
        assert refused(authenticator, headers)
    finally:
        await catalog.stop()


def refused(authenticator: Authenticator, headers: list[tuple[bytes, bytes]]) -> bool:
    try:
        authenticator.identify(headers, None)
    except ApiError as error:
        return error.status == 401
    return False


async def test_an_unchanged_catalog_keeps_its_snapshot_and_a_change_rebuilds_only_what_changed(
    catalog: Catalog, desk: Desk, database: AsyncEngine
) -> None:
    team = await desk.team()
    _, first = await desk.key(team)
    row, second = await desk.key(team)
    await catalog.refresh()
    before = catalog.snapshot
    await catalog.refresh()
    assert catalog.snapshot is before
    await desk.rename(row, "renamed")
    await catalog.refresh()
    after = catalog.snapshot
    assert after.version == before.version + 1
    assert after.keys[digest(PEPPER, first.encode())] is before.keys[digest(PEPPER, first.encode())]
    assert after.keys[digest(PEPPER, second.encode())].key_name == "renamed"
    assert before.keys[digest(PEPPER, second.encode())].key_name == "ci"
    async with database.begin() as connection:
        await update_team(connection, team, billing="prepaid", lost_charge="none")
    await catalog.refresh()
    assert {(each.prepaid, each.team_lost_charge) for each in catalog.snapshot.keys.values()} == {(True, "none")}
    assert {each.key_name for each in catalog.snapshot.keys.values()} == {"ci", "renamed"}


async def test_a_database_restored_from_an_older_copy_is_read_afresh(
    catalog: Catalog, desk: Desk, database: AsyncEngine
) -> None:
    team = await desk.team()
    _, kept = await desk.key(team)
    row, lost = await desk.key(team)
    await catalog.refresh()
    async with database.begin() as connection:
        await connection.execute(text("DELETE FROM key_secrets WHERE key_id = :id"), {"id": row.id})
        await connection.execute(text("UPDATE catalog_version SET version = version - 1"))
    await catalog.refresh()
    assert (known(catalog, kept), known(catalog, lost)) == (True, False)


async def test_budgets_are_indexed_by_what_they_bound(catalog: Catalog, desk: Desk, database: AsyncEngine) -> None:
    team, other = await desk.team("a"), await desk.team("b")
    row, key = await desk.key(team)
    async with database.begin() as connection:
        made = [
            await create_budget(connection, scope=scope, scope_id=scope_id, amount="1", currency="CNY", period="day")
            for scope, scope_id in (("team", team), ("team", other), ("key", row.id), ("all", None), ("team", team))
        ]
    await catalog.refresh()
    identity = catalog.snapshot.keys[digest(PEPPER, key.encode())]
    assert catalog.snapshot.budgets.over(identity) == (made[2], made[0], made[4], made[3])


async def test_rule_32b_an_outage_keeps_the_last_snapshot_for_auth_stale_s_and_recovers_by_itself(
    catalog: Catalog, desk: Desk, database: AsyncEngine
) -> None:
    _, key = await desk.key(await desk.team())
    await catalog.refresh()
    patient, strict = Authenticator(catalog, PEPPER, auth_stale_s=900), Authenticator(catalog, PEPPER, auth_stale_s=1)
    headers = [(b"x-api-key", key.encode())]
    await hide(database, True)
    await eventually(lambda: catalog.stale_since_us is not None, "the outage is noticed")
    assert catalog.ready
    patient.identify(headers, None)
    await eventually(lambda: catalog.age_s() > 1.0, "the snapshot is a second old")
    patient.identify(headers, None)
    with pytest.raises(ApiError) as caught:
        strict.identify(headers, None)
    assert (caught.value.status, caught.value.code) == (503, "catalog_stale")
    await hide(database, False)
    await eventually(lambda: catalog.stale_since_us is None, "the catalog is current again")
    strict.identify(headers, None)


async def test_rule_32a_another_pepper_than_the_databases_refuses_to_start(
    catalog: Catalog, database: AsyncEngine
) -> None:
    stranger = Catalog(database, Pepper(b"another-pepper-of-32-bytes-or-so", "var/key-pepper"))
    with pytest.raises(PepperError, match="from var/key-pepper is not the one"):
        await stranger.start()
    assert not stranger.ready


async def test_rule_32a_parallel_first_starts_record_one_fingerprint(database: AsyncEngine) -> None:
    catalogs = [Catalog(database, PEPPER) for _ in range(5)]
    await asyncio.gather(*(each.refresh() for each in catalogs))
    async with database.connect() as connection:
        values = (await connection.scalars(text("SELECT value FROM installation"))).all()
    assert values == [PEPPER.fingerprint]


class TestWithADatabaseThatComesLater:
    @pytest.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
        engine = open_database(f"sqlite:///{tmp_path / 'later.db'}")
        yield engine
        await engine.dispose()

    async def test_rule_26_it_starts_not_ready_and_becomes_ready_by_itself(
        self, database: AsyncEngine, tmp_path: Path
    ) -> None:
        catalog = Catalog(database, PEPPER, poll_s=0.05)
        await catalog.start()
        try:
            assert not catalog.ready
            with pytest.raises(NotLoaded):
                _ = catalog.snapshot
            await upgrade(f"sqlite:///{tmp_path / 'later.db'}")
            await eventually(lambda: catalog.ready, "the catalog is loaded")
            assert catalog.stale_since_us is None
        finally:
            await catalog.stop()


async def test_rule_32a_a_mismatch_that_shows_only_after_the_start_is_never_served(database: AsyncEngine) -> None:
    await Catalog(database, Pepper(b"another-pepper-of-32-bytes-or-so", "elsewhere")).refresh()
    await hide(database, True, "installation")
    catalog = Catalog(database, PEPPER, poll_s=0.05)
    await catalog.start()
    try:
        assert (catalog.ready, catalog.refused) == (False, None)
        await hide(database, False, "installation")
        await eventually(lambda: catalog.refused is not None, "the mismatch is found")
        assert not catalog.ready
    finally:
        await catalog.stop()
