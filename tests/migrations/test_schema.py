"""One chain builds exactly `billing.tables.metadata`, on both databases, from nothing and from every revision."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

import gateway
import migrations
from billing.database import open_database
from billing.partitions import ensure_partitions
from billing.tables import PARTITIONED, metadata
from billing.times import DAY_US, first_id_at, now_us
from gateway.database import check, revisions, upgrade, wanted_revision

import_module("billing.coarse_tables")
import_module("billing.statement_tables")
import_module("billing.wallet_tables")
for module in Path(gateway.__path__[0]).glob("*/tables.py"):  # the gateway's rooms add theirs to the one metadata
    import_module(f"gateway.{module.parent.name}.tables")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url


def _revisions() -> list[str]:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]


def _differences(connection: Connection) -> list[Any]:
    def ours(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
        partitions = tuple(f"{table}_" for table, _ in PARTITIONED)
        own = ("usage_lines",)
        return not (kind == "table" and name is not None and name not in own and name.startswith(partitions))

    context = MigrationContext.configure(connection, opts={"include_object": ours, "compare_type": False})
    return list(compare_metadata(context, metadata))


async def test_a_migrated_database_has_exactly_the_tables_of_the_metadata(database: AsyncEngine) -> None:
    async with database.connect() as connection:
        assert await connection.run_sync(_differences) == []


async def test_sqlite_tables_are_the_strict_ones_of_the_metadata(sqlite_url: str, tmp_path: Path) -> None:
    async def tables_of(url: str, create: bool) -> dict[str, str]:
        engine = open_database(url)
        try:
            async with engine.begin() as connection:
                if create:
                    await connection.run_sync(metadata.create_all)
                rows = await connection.execute(
                    text("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name <> 'alembic_version'")
                )
                return {row.name: " ".join(sorted(row.sql.replace(",", " ").split())) for row in rows}
        finally:
            await engine.dispose()

    migrated = await tables_of(sqlite_url, create=False)
    assert migrated == await tables_of(f"sqlite:///{tmp_path}/fresh.db", create=True)
    assert all("STRICT" in sql for sql in migrated.values())


@pytest.mark.parametrize("revision", _revisions())
async def test_an_upgrade_from_every_revision_ends_at_the_newest(empty_url: str, revision: str) -> None:
    assert (await upgrade(empty_url, revision)).current == revision
    state = await upgrade(empty_url)
    assert state.up_to_date
    assert state.current == wanted_revision()
    assert state.advice == ""


def test_the_files_names_tell_the_chain_of_revisions() -> None:
    assert revisions() == _revisions()[::-1]


async def test_check_says_what_to_do_about_an_empty_database(empty_url: str) -> None:
    state = await check(empty_url)
    assert state.current is None
    assert not state.up_to_date
    assert "metergate db upgrade" in state.advice


async def test_four_upgrades_at_once_make_one_schema(empty_url: str) -> None:
    states = await asyncio.gather(*(upgrade(empty_url) for _ in range(4)))
    assert all(state.up_to_date for state in states)


async def test_published_rows_refuse_to_be_changed_or_removed(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await connection.execute(text("INSERT INTO price_books (version, published_at_us, hash) VALUES (1, 1, 'h')"))
    for statement in ("UPDATE price_books SET hash = 'x'", "DELETE FROM price_books"):
        async with database.connect() as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                await connection.execute(text(statement))


async def test_partitions_are_made_ahead_and_take_the_rows_of_the_default_one(postgresql_url: str) -> None:
    engine = open_database(postgresql_url)
    far_us = now_us() + 400 * DAY_US
    request_id = first_id_at(far_us)
    try:
        async with engine.begin() as connection:
            await connection.execute(
                text(
                    "INSERT INTO usage_lines (usage_id, token_class, quantity) VALUES (:id, 'output', 1)",
                ),
                {"id": request_id},
            )
            where = text("SELECT tableoid::regclass::text FROM usage_lines")
            assert await connection.scalar(where) == "usage_lines_default"
        async with engine.begin() as connection:
            made = await ensure_partitions(connection, far_us, months_ahead=1)
            assert len(made) == 6
            assert await connection.scalar(where) == made[1]
            assert await ensure_partitions(connection, far_us, months_ahead=1) == []
    finally:
        await engine.dispose()
