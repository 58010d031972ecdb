"""SQLite's connections, whose every statement is one visit to their thread.

aiosqlite makes four of it: for the cursor, the statement, its rows and the cursor's end. Each visit wakes a thread that fights
with its caller for the interpreter. SQLAlchemy takes all rows at once in any case, and nobody here streams.

A process that has nothing else to do meanwhile, the recorder, does without the thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import aiosqlite

_CHUNK: Final = 64
T = TypeVar("T")


class Connection(aiosqlite.Connection):
    """What SQLAlchemy uses of aiosqlite's."""

    def cursor(self) -> Cursor:  # type: ignore[override]  # which is a coroutine too, for it goes to the thread
        return Cursor(self)

    async def visit(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns, called by the connection's thread."""
        returned: T = await self._execute(function, *arguments)  # type: ignore[no-untyped-call]
        return returned


class Cursor:
    """A cursor that is filled by `execute`; it holds nothing of the connection's afterwards."""

    arraysize = 1

    def __init__(self, connection: Connection | InlineConnection) -> None:
        self._connection = connection
        self._cursor: sqlite3.Cursor | None = None
        self._rows: Sequence[Any] = ()

    async def __aenter__(self) -> Cursor:
        return self

    async def execute(self, statement: str, parameters: Iterable[Any] = ()) -> None:
        self._cursor, self._rows = await self._connection.visit(_execute, self._connection._conn, statement, parameters)

    async def executemany(self, statement: str, parameters: Iterable[Iterable[Any]]) -> None:
        self._cursor = await self._connection.visit(self._connection._conn.executemany, statement, parameters)

    async def fetchall(self) -> Sequence[Any]:
        return self._rows

    async def close(self) -> None:
        """The thread may be at it still, where its caller was cancelled: it ends by itself."""

    @property
    def description(self) -> Any:
        return None if self._cursor is None else self._cursor.description

    @property
    def rowcount(self) -> int:
        return -1 if self._cursor is None else self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return None if self._cursor is None else self._cursor.lastrowid


class InlineConnection:
    """The same without a thread: the event loop has its turn before each statement, and stands still for as long as one takes, a
    wait for the writer's place included (`busy_timeout`)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection

    @property
    def _conn(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("connection closed")  # which SQLAlchemy takes for a lost one
        return self._connection

    def cursor(self) -> Cursor:
        return Cursor(self)

    async def visit(self, function: Callable[..., T], *arguments: Any) -> T:
        await asyncio.sleep(0)
        return function(*arguments)

    async def create_function(self, *arguments: Any, **options: Any) -> None:
        self._conn.create_function(*arguments, **options)

    async def commit(self) -> None:
        self._conn.commit()

    async def rollback(self) -> None:
        self._conn.rollback()

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _execute(connection: sqlite3.Connection, statement: str, parameters: Any) -> tuple[sqlite3.Cursor, Sequence[Any]]:
    cursor = connection.execute(statement, parameters)
    return cursor, cursor.fetchall() if cursor.description else ()


async def connect(database: str) -> Connection:
    """The thread ends with the process, closed or not."""
    connection = Connection(partial(_open, database), _CHUNK)
    connection._thread.daemon = True
    await connection
    return connection


async def connect_inline(database: str) -> InlineConnection:
    return InlineConnection(_open(database))


def _open(database: str) -> sqlite3.Connection:
    """Transactions are begun by statements, never by the driver."""
    return sqlite3.connect(database, isolation_level=None, check_same_thread=False)
