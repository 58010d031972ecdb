"""Bringing a database to the schema this version needs, and telling whether it is there.

Migrations run under a lock, so that any number of replicas may start at once: an advisory lock on PostgreSQL, the write lock on
SQLite. Each run is one transaction: it ends at the new schema or where it began. There is no downgrade; restore a backup.

Alembic is imported only where there is something to migrate: a gateway that finds its database current starts sooner and keeps
11 MB without it. The revisions are one chain, and their files' names begin with them (tests/migrations hold that).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

import migrations
from billing.database import open_database, reading
from billing.partitions import ensure_partitions
from billing.times import now_us

FOLDER: Final = Path(migrations.__file__).parent
VERSION_TABLE: Final = "alembic_version"
_LOCK: Final = 0x6D67_6D69_6772  # "mgmigr"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`current` is None on an empty database. `known` is False when the database was written by a newer version."""

    current: str | None
    wanted: str
    known: bool

    @property
    def up_to_date(self) -> bool:
        return self.current == self.wanted

    @property
    def advice(self) -> str:
        """What to do, in one line; empty when there is nothing to do."""
        if self.up_to_date:
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


async def upgrade(url: str, revision: str = "head") -> SchemaState:
    """Run every migration the database at `url` lacks, up to `revision`, and make the partitions of the coming months."""
    engine = open_database(url)
    try:
        async with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            if await connection.run_sync(_current) != (wanted_revision() if revision == "head" else revision):
                await connection.run_sync(_migrate, revision)
            await ensure_partitions(connection, now_us())
        return await _state(engine)
    finally:
        await engine.dispose()


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
    return SchemaState(current, wanted_revision(), current is None or current in revisions())


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    current: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return current
