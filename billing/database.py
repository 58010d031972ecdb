"""Opening the books: an async engine for SQLite or PostgreSQL, and the one row that says whether the catalog changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, event, make_url, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from billing import tables
from billing.errors import BillingError
from billing.writers import waiting

BUSY_TIMEOUT_MS: Final = 10_000
SQLITE_CACHE_KIB: Final = 2048
"""Of pages, for all connections of a pool together: what SQLite gives each one would be most of what a busy door grows by."""
_BEGIN_OPTION: Final = "metergate_begin"
_DEFERRED: Final = "deferred"


def async_url(url: str) -> URL:
    """`sqlite:///var/metergate.db` or `postgresql://user@host/db` with its async driver."""
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite")
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+asyncpg")
    raise BillingError(f"database_url: {backend!r} is not supported; use sqlite:///path or postgresql://user@host/db")


def open_database(
    url: str, *, pool_size: int = 5, busy_timeout_ms: int = BUSY_TIMEOUT_MS, inline: bool = False
) -> AsyncEngine:
    """An engine over `url`. Nothing is connected yet. SQLite: WAL, synchronous=FULL, foreign keys, writers begin IMMEDIATE.

    Transactions of `reading(engine)` begin DEFERRED on SQLite, so that readers never wait for the writer. `inline`: SQLite's
    statements run in the thread that asks, for less, and its event loop waits for them.
    """
    parsed = async_url(url)
    if parsed.get_backend_name() == "sqlite":
        database = parsed.database
        if not database or database == ":memory:":
            raise BillingError("database_url: SQLite needs a file, such as sqlite:///var/metergate.db")
        Path(database).parent.mkdir(parents=True, exist_ok=True)
        from billing.sqlite import connect, connect_inline

        creator = partial(connect_inline if inline else connect, database)
        engine = create_async_engine(parsed, async_creator=creator, pool_size=pool_size, max_overflow=5)
        configure = partial(_configure_sqlite, busy_timeout_ms, SQLITE_CACHE_KIB // pool_size)
        event.listen(engine.sync_engine, "connect", configure)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    return create_async_engine(parsed, pool_size=pool_size, max_overflow=5, pool_pre_ping=True)


def _configure_sqlite(busy_timeout_ms: int, cache_kib: int, connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {busy_timeout_ms}",
        f"cache_size = -{cache_kib}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    if connection.get_execution_options().get(_BEGIN_OPTION) == _DEFERRED:
        connection.exec_driver_sql("BEGIN DEFERRED")
        return
    with waiting(connection.engine.url.database):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection for queries only: a consistent snapshot that waits for no writer."""
    async with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            await connection.execution_options(**{_BEGIN_OPTION: _DEFERRED})
        yield connection


_OVERFLOWS: Final = (
    "cannot store REAL value in INTEGER column",
    "out of range",
    "out of int64 range",
    "integer overflow",
)
"""SQLite twice, PostgreSQL, and its driver, which looks at a value before it sends it."""


def is_overflow(error: DBAPIError) -> bool:
    """Whether the database refused a sum because it leaves 64 bits."""
    text = str(error.orig)
    return any(words in text for words in _OVERFLOWS)


async def catalog_version(connection: AsyncConnection) -> int:
    """The version of everything a gateway keeps in memory: teams, keys, prices, rates, terms, budgets."""
    version: int | None = await connection.scalar(select(tables.catalog_version.c.version))
    if version is None:
        raise BillingError("the database has no catalog_version row; run `metergate db upgrade`")
    return version


async def bump_catalog_version(connection: AsyncConnection) -> int:
    """First statement of every catalog write: it takes the lock that makes writers queue, so that ids commit in order."""
    table = tables.catalog_version
    version: int | None = await connection.scalar(
        update(table).values(version=table.c.version + 1).returning(table.c.version)
    )
    if version is None:
        raise BillingError("the database has no catalog_version row; run `metergate db upgrade`")
    return version
