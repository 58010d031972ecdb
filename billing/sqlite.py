"""SQLite's connections, whose every statement is one visit to their thread.

aiosqlite makes four of it: for the cursor, the statement, its rows and the cursor's end. Each visit wakes a thread that fights
with its caller for the interpreter. SQLAlchemy takes all rows at once in any case, and nobody here streams.
"""

from __future__ import annotations

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

    def __init__(self, connection: Connection) -> None:
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


def _execute(connection: sqlite3.Connection, statement: str, parameters: Any) -> tuple[sqlite3.Cursor, Sequence[Any]]:
    cursor = connection.execute(statement, parameters)
    return cursor, cursor.fetchall() if cursor.description else ()


async def connect(database: str) -> Connection:
    """Transactions are begun by statements, never by the driver. The thread ends with the process, closed or not."""
    opened = partial(sqlite3.connect, database, isolation_level=None, check_same_thread=False)
    connection = Connection(opened, _CHUNK)
    connection._thread.daemon = True
    await connection
    return connection
