"""Bringing a database to the schema this version needs, and telling whether it is there.

Migrations run under a lock, so that any number of replicas may start at once: an advisory lock on PostgreSQL, the write lock on
SQLite. Each run is one transaction: it ends at the new schema or where it began. There is no downgrade; restore a backup.
An index over a big table would hold up its writers: PostgreSQL builds it before, while they go on (`ahead` in a revision).

A release runs on its own schema, and on a newer one that says that it may (`schema_floor`): during a rolling upgrade the old
programs go on, restart and come back on what the new release has added.

Alembic is imported only where there is something to migrate: a gateway that finds its database current starts sooner and keeps
11 MB without it. The revisions are one chain, and their files' names begin with them (tests/migrations hold that).
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from sqlalchemy import CheckConstraint, Column, Connection, Table, Text, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

import migrations
from billing.columns import Int64
from billing.database import BUSY_TIMEOUT_MS, open_database, reading
from billing.partitions import ensure_partitions
from billing.tables import metadata
from billing.times import now_us

FOLDER: Final = Path(migrations.__file__).parent
VERSION_TABLE: Final = "alembic_version"
_LOCK: Final = 0x6D67_6D69_6772  # "mgmigr"
_AHEAD_LOCK: Final = 0x6D67_6168_6561  # "mgahea"
LOCK_S: Final = 5
"""So long a migration waits for a table; whoever wants that table waits behind it. Then it lets them pass and begins again."""
TRIES: Final = 24
PAUSE_S: Final = 1.0
_BEGIN_AGAIN: Final = frozenset({"40P01", "55P03"})

schema_floor = Table(
    "schema_floor",
    metadata,
    Column("id", Int64, CheckConstraint("id = 1", name="one_row"), primary_key=True, autoincrement=False),
    Column("revision", Text, nullable=False),
    sqlite_strict=True,
)
"""The oldest release, by its newest revision, whose programs run on this schema."""


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`current` is None on an empty database. `known` is False when the database was written by a newer version; `floor` is then
    the oldest schema whose programs may still use it."""

    current: str | None
    wanted: str
    known: bool
    floor: str | None = None

    @property
    def up_to_date(self) -> bool:
        return self.current == self.wanted

    @property
    def usable(self) -> bool:
        """Whether this version's programs run on it."""
        return self.up_to_date or (not self.known and self.floor is not None and self.floor <= self.wanted)

    @property
    def advice(self) -> str:
        """What to do, in one line; empty when there is nothing to do."""
        if self.usable:
            return ""
        if not self.known:
            return f"the database has schema {self.current}, newer than this version knows ({self.wanted}); update metergate"
        return f"the database has schema {self.current or 'none'}, this version needs {self.wanted}; run `metergate db upgrade`"


def revisions() -> list[str]:
    """The revisions that this version carries, oldest first."""
    return sorted(file.name.partition("_")[0] for file in FOLDER.glob("versions/[0-9]*_*.py"))


def wanted_revision() -> str:
    """The newest of them."""
    return revisions()[-1]


def _migrate(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


async def upgrade(url: str, revision: str = "head", *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> SchemaState:
    """Run every migration the database at `url` lacks, up to `revision`, and make the partitions of the coming months.

    A database of a newer version is left as it is. For SQLite's write lock it waits `busy_timeout_ms`.
    """
    engine = open_database(url, busy_timeout_ms=busy_timeout_ms)
    try:
        for left in reversed(range(TRIES)):
            try:
                await _build_ahead(engine, revision)
                await _upgrade_once(engine, revision)
                break
            except DBAPIError as error:
                if left == 0 or getattr(error.orig, "sqlstate", None) not in _BEGIN_AGAIN:
                    raise
                await asyncio.sleep(PAUSE_S)
        return await _state(engine)
    finally:
        await engine.dispose()


async def _upgrade_once(engine: AsyncEngine, revision: str) -> None:
    async with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_S}s'"))
        current = await connection.run_sync(_current)
        if current is not None and current not in revisions():
            return
        if current != (wanted_revision() if revision == "head" else revision):
            await connection.run_sync(_migrate, revision)
        await ensure_partitions(connection, now_us())


async def _build_ahead(engine: AsyncEngine, revision: str) -> None:
    """Runs the `ahead` of each revision that is to come, if it has one. Done again, it only does what is missing.

    The lock is tried, not waited for: a statement that waits holds a snapshot, whose end a concurrent build waits for.
    """
    if engine.dialect.name != "postgresql":
        return
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        current = await connection.run_sync(_current)
        coming = [] if current is None else [each for each in _coming(current, revision) if hasattr(each, "ahead")]
        if not coming:
            return
        while not await connection.scalar(text(f"SELECT pg_try_advisory_lock({_AHEAD_LOCK})")):
            await asyncio.sleep(PAUSE_S)
        try:
            for each in coming:
                await connection.run_sync(each.ahead)
        finally:
            await connection.execute(text(f"SELECT pg_advisory_unlock({_AHEAD_LOCK})"))


def _coming(current: str, last: str) -> Iterator[ModuleType]:
    """The revisions after `current` as far as `last`; none of a database that a newer version wrote."""
    for file in sorted(FOLDER.glob("versions/[0-9]*_*.py")):
        if current < file.name.partition("_")[0] <= (wanted_revision() if last == "head" else last):
            yield importlib.import_module(f"{migrations.__name__}.versions.{file.stem}")


async def check(url: str) -> SchemaState:
    """Which schema the database at `url` has and which this version needs. Changes nothing."""
    engine = open_database(url)
    try:
        return await _state(engine)
    finally:
        await engine.dispose()


async def _state(engine: AsyncEngine) -> SchemaState:
    async with reading(engine) as connection:
        current = await connection.run_sync(_current)
        floor = await connection.run_sync(_floor)
    return SchemaState(current, wanted_revision(), current is None or current in revisions(), floor)


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    current: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return current


def _floor(connection: Connection) -> str | None:
    if not inspect(connection).has_table(schema_floor.name):
        return None
    floor: str | None = connection.execute(schema_floor.select().with_only_columns(schema_floor.c.revision)).scalar()
    return floor
