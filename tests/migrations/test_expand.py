"""Law: a migration only adds to what programs of the schema's floor rely on, or moves the floor to itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.database import open_database
from billing.tables import usage
from gateway import database as database_module
from gateway.database import check, revisions, upgrade, wanted_revision
from tests.billing.helpers import NOON_US, request_id
from tests.migrations.test_checks import ROW

FIRST_FLOOR = "0016"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a program can trip over in one table."""

    columns: dict[str, tuple[str, bool, bool]]
    """Type, whether null may stand there, whether there is a default."""
    unique: set[frozenset[str]]
    checks: set[str]


def shapes(connection: sa.Connection) -> dict[str, Shape]:
    inspector = sa.inspect(connection)
    found = {}
    for name in inspector.get_table_names():
        unique = {frozenset(map(str, each["column_names"])) for each in inspector.get_unique_constraints(name)}
        unique |= {frozenset(map(str, each["column_names"])) for each in inspector.get_indexes(name) if each["unique"]}
        found[name] = Shape(
            {
                each["name"]: (str(each["type"]), bool(each["nullable"]), each["default"] is not None)
                for each in inspector.get_columns(name)
            },
            unique,
            {each["sqltext"] for each in inspector.get_check_constraints(name)},
        )
    return found


def taken_away(before: dict[str, Shape], after: dict[str, Shape]) -> list[str]:
    """Every way in which a program that was written for `before` can fail on `after`."""
    found = [f"the table {name} is gone" for name in before.keys() - after.keys()]
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        for column in old.columns.keys() - new.columns.keys():
            found.append(f"{name}.{column} is gone")
        for column in old.columns.keys() & new.columns.keys():
            if old.columns[column][0] != new.columns[column][0]:
                found.append(f"{name}.{column} has another type")
            if old.columns[column][1] and not new.columns[column][1]:
                found.append(f"{name}.{column} takes no null any more")
        fresh = new.columns.keys() - old.columns.keys()
        for column in fresh:
            _, nullable, defaulted = new.columns[column]
            if not (nullable or defaulted):
                found.append(f"{name}.{column} has to be given")
        for columns in new.unique - old.unique:
            if not any(known <= columns for known in old.unique):
                found.append(f"{name} refuses what has the same {sorted(columns)}")
        for condition in new.checks - old.checks:
            if not any(column in condition for column in fresh):
                found.append(f"{name} refuses what is not {condition}")
    return found


async def _shapes(url: str) -> dict[str, Shape]:
    engine = open_database(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(shapes)
    finally:
        await engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_takes_something_away_moves_the_floor(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"empty_{kind}_url")
    await upgrade(url, FIRST_FLOOR)
    before = await _shapes(url)
    for revision in revisions()[revisions().index(FIRST_FLOOR) + 1 :]:
        floor = (await check(url)).floor
        await upgrade(url, revision)
        after = await _shapes(url)
        if found := taken_away(before, after):
            assert (await check(url)).floor == revision, (
                f"{revision} takes away and leaves the floor at {floor}: {found}"
            )
        before = after
    assert FIRST_FLOOR <= ((await check(url)).floor or "") <= wanted_revision()


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("ALTER TABLE teams ADD COLUMN shade TEXT", ""),
        ("ALTER TABLE teams ADD COLUMN shade TEXT NOT NULL DEFAULT 'x' CHECK (shade <> '')", ""),
        ("CREATE TABLE shades (name TEXT NOT NULL) STRICT", ""),
        ("CREATE INDEX ix_shades ON teams (name)", ""),
        ("CREATE UNIQUE INDEX uq_shades ON teams (settlement_currency)", "refuses what has the same"),
        ("ALTER TABLE webhook_events RENAME TO shades", "the table webhook_events is gone"),
        ("ALTER TABLE teams RENAME COLUMN name TO shade", "teams.name is gone"),
    ],
)
async def test_the_law_sees_what_takes_away(sqlite_url: str, statement: str, complaint: str) -> None:
    before = await _shapes(sqlite_url)
    engine = open_database(sqlite_url)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()
    found = taken_away(before, await _shapes(sqlite_url))
    assert any(complaint in each for each in found) if complaint else found == []


async def test_a_newer_schema_serves_the_releases_from_its_floor_on_and_is_left_as_it_is(
    database_url: str, database: AsyncEngine
) -> None:
    async def written_by_a_newer_release(floor: str) -> None:
        async with database.begin() as connection:
            await connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
            await connection.execute(sa.text("UPDATE schema_floor SET revision = :floor"), {"floor": floor})

    await written_by_a_newer_release(wanted_revision())
    for state in (await check(database_url), await upgrade(database_url)):
        assert (state.current, state.known, state.usable, state.advice) == ("9999", False, True, "")
    await written_by_a_newer_release("9998")
    for state in (await check(database_url), await upgrade(database_url)):
        assert (state.current, state.usable) == ("9999", False)
        assert "update metergate" in state.advice


async def test_a_migration_lets_others_pass_while_it_waits_for_a_table(
    empty_postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long question must not stop every writer behind a migration that waits for its end."""
    monkeypatch.setattr(database_module, "LOCK_S", 0.2)
    monkeypatch.setattr(database_module, "PAUSE_S", 0.2)
    await upgrade(empty_postgresql_url, "0014")
    engine = open_database(empty_postgresql_url)
    try:
        async with engine.connect() as reader, asyncio.TaskGroup() as group:
            await reader.execute(sa.text("SELECT count(*) FROM rollup_traffic"))
            migrating = group.create_task(upgrade(empty_postgresql_url))
            written = 0
            for _ in range(20):
                async with engine.begin() as writer:
                    await writer.execute(sa.text("SET LOCAL lock_timeout = '20s'"))
                    await writer.execute(sa.text("DELETE FROM rollup_traffic"))
                written += 1
                await asyncio.sleep(0.05)
            assert written == 20 and not migrating.done()
            await reader.rollback()
        assert migrating.result().up_to_date
    finally:
        await engine.dispose()


async def test_an_index_over_usage_is_built_while_its_writers_go_on(empty_postgresql_url: str) -> None:
    """Also where a build before it was cut short and left an index that is not to be used."""
    await upgrade(empty_postgresql_url, "0016")
    engine = open_database(empty_postgresql_url)
    written = 0

    async def write(connection: AsyncConnection) -> None:
        nonlocal written
        written += 1
        await connection.execute(sa.insert(usage).values(ROW | {"id": request_id(NOON_US + written)}))

    try:
        async with engine.begin() as connection:
            await connection.execute(
                sa.text(
                    "CREATE INDEX ix_usage_default_not_completed ON usage_default (status, id) WHERE status <> 'completed'"
                )
            )
            await connection.execute(
                sa.text(
                    "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'ix_usage_default_not_completed'::regclass"
                )
            )
        async with engine.connect() as slow, asyncio.TaskGroup() as group:
            await write(slow)
            migrating = group.create_task(upgrade(empty_postgresql_url))
            for _ in range(20):
                async with engine.begin() as writer:
                    await writer.execute(sa.text("SET LOCAL lock_timeout = '1s'"))
                    await write(writer)
                await asyncio.sleep(0.05)
            assert not migrating.done(), "it waits for the slow one alone"
            await slow.commit()
        assert migrating.result().up_to_date
        async with engine.connect() as connection:
            parts = await connection.execute(
                sa.text(
                    "SELECT inhrelid::regclass::text AS name, indisvalid FROM pg_inherits "
                    "JOIN pg_index ON indexrelid = inhrelid WHERE inhparent = 'ix_usage_not_completed'::regclass"
                )
            )
            built = {row.name: row.indisvalid for row in parts}
            partitions = await connection.scalars(
                sa.text("SELECT relid::regclass::text FROM pg_partition_tree('usage') WHERE isleaf")
            )
            assert built == {f"ix_{name}_not_completed": True for name in partitions}, "none was built under its lock"
            assert await connection.scalar(sa.text("SELECT count(*) FROM usage WHERE status <> 'completed'")) == 21
    finally:
        await engine.dispose()
