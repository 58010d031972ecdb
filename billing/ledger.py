"""The ledger: usage rows go in once, with their lines, attempts and rollups, and debit their wallets, in one transaction.

`record` may be given any batch any number of times, in any order, by several writers at once: a row whose id stands in the
books already adds nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.coarse import COARSE
from billing.columns import Flag, RequestIdType
from billing.database import is_overflow
from billing.errors import AmountOverflow
from billing.folding import hold_mark
from billing.ledger_rows import ROWS, as_bytes, as_uuid, usage_rows
from billing.money import BEYOND
from billing.reads import list_usage, usage_row
from billing.records import AttemptRecord, RecordResult, UsageRecord, UsageView
from billing.reports import usage_buckets
from billing.rollups import Rows, late_rows, money_rows, traffic_rows
from billing.spending import spent
from billing.wallet_usage import debit
from billing.wallets import WalletEvent

__all__ = [
    "AttemptRecord",
    "RecordResult",
    "UsageRecord",
    "UsageView",
    "list_usage",
    "record",
    "spent",
    "usage_buckets",
    "usage_row",
]

ID_BYTES: Final = 16
_SQLITE_KNOWN: Final = (
    f"WITH RECURSIVE place (at) AS (SELECT 1 UNION ALL SELECT at + {ID_BYTES} FROM place WHERE at + {ID_BYTES} <= length(?1))"
    f" SELECT id FROM place CROSS JOIN usage ON id = substr(?1, at, {ID_BYTES})"
)
"""Of the ids in one value, one behind the other, those that stand there."""
_SQLITE_ROWS_PER_INSERT: Final = 32
_COPY_FROM: Final = 20
"""From this many rows on, the two round trips of a savepoint are worth it."""
_KNOWN: Final = "SELECT id FROM usage WHERE id = ANY($1::uuid[])"


async def record(connection: AsyncConnection, records: Sequence[UsageRecord]) -> RecordResult:
    """Write what is new among `records` and count the rest as duplicates. The caller owns the transaction.

    Raises `AmountOverflow` when a sum would leave 64 bits: nothing of the batch is then written.
    """
    by_id: dict[UUID, UsageRecord] = {}
    for each in records:
        by_id.setdefault(each.id, each)
    ordered = [by_id[key] for key in sorted(by_id, key=lambda id_: id_.int)]
    if not ordered:
        return RecordResult(0, 0)
    events: tuple[WalletEvent, ...] = ()
    try:
        new = await _writer(connection).insert_new(connection, ordered)
        if new:
            await _add_to_rollups(connection, new)
            events = await debit(connection, new)
    except DBAPIError as error:
        if is_overflow(error):
            raise AmountOverflow(
                f"a sum of the rollups or a balance would be {BEYOND}; the batch was not written"
            ) from error
        raise
    except OverflowError as error:  # SQLite's driver: an integer too large for the column
        raise AmountOverflow("an amount or a count is beyond 64 bits; the batch was not written") from error
    return RecordResult(len(new), len(records) - len(new), frozenset(each.id for each in new), events)


async def _add_to_rollups(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    mark_us = await hold_mark(connection)
    traffic = await add_quarters(connection, records)
    writer = _writer(connection)
    for coarse in COARSE:
        await writer.insert(connection, coarse.table.name, late_rows(traffic, coarse, mark_us))


async def add_quarters(connection: AsyncConnection, records: Sequence[UsageRecord]) -> Rows:
    """Adds rows to the quarter-hours of both rollups, each of them once; what was added to `rollup_traffic`."""
    writer, traffic = _writer(connection), traffic_rows(records)
    await writer.insert(connection, "rollup_money", money_rows(records))
    await writer.insert(connection, "rollup_traffic", traffic)
    return traffic


@dataclass(frozen=True, slots=True)
class _Upsert:
    """What to do where a rollup cell exists: add to it."""

    key: tuple[str, ...]
    sums: tuple[str, ...]

    def clause(self, table: str) -> str:
        added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in self.sums)
        return f" ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {added}"


_ROLLUPS: Final = {
    "rollup_money": _Upsert(tables.MONEY_KEY, tables.MONEY_SUMS),
    "rollup_traffic": _Upsert(tables.TRAFFIC_KEY, tables.TRAFFIC_SUMS),
    **{coarse.table.name: _Upsert(coarse.key, tables.TRAFFIC_SUMS) for coarse in COARSE},
}
_WRITTEN: Final[tuple[Table, ...]] = (
    tables.usage,
    tables.usage_lines,
    tables.attempts,
    tables.rollup_money,
    tables.rollup_traffic,
    *(coarse.table for coarse in COARSE),
)


class _SqliteWriter:
    """Prepared statements. Existing ids are looked up first: the transaction holds the only write lock.

    Binding its values is most of what a row costs here, so what all rows of a batch say alike is bound once for many rows.
    """

    def __init__(self) -> None:
        self._columns = {table.name: [column.name for column in table.columns] for table in _WRITTEN}
        self._add: dict[str, str] = {}
        for name, upsert in _ROLLUPS.items():
            columns = self._columns[name]
            values = f"({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            self._add[name] = f"INSERT INTO {name} {values}{upsert.clause(name)}"

    async def insert_new(self, connection: AsyncConnection, records: list[UsageRecord]) -> list[UsageRecord]:
        ids = [each.id.int.to_bytes(ID_BYTES, "big") for each in records]
        known = {row[0] for row in await connection.exec_driver_sql(_SQLITE_KNOWN, (b"".join(ids),))}
        new = [each for each, id_ in zip(records, ids, strict=True) if id_ not in known] if known else records
        for table, rows_of in ROWS.items():
            if rows := rows_of(new, as_bytes):
                await self._insert(connection, table, rows)
        return new

    async def _insert(self, connection: AsyncConnection, table: str, rows: Rows) -> None:
        columns = list(zip(*rows, strict=True))
        varying = [at for at, column in enumerate(columns) if at == 0 or column.count(column[0]) < len(rows)]
        alike = tuple([column[0] for at, column in enumerate(columns) if at not in varying])
        values = list(zip(*[columns[at] for at in varying], strict=True))
        whole = len(values) - len(values) % _SQLITE_ROWS_PER_INSERT
        if whole:
            many = [
                (*alike, *chain.from_iterable(values[at : at + _SQLITE_ROWS_PER_INSERT]))
                for at in range(0, whole, _SQLITE_ROWS_PER_INSERT)
            ]
            await connection.exec_driver_sql(self._statement(table, varying, _SQLITE_ROWS_PER_INSERT), many)
        if rest := values[whole:]:
            last = (*alike, *chain.from_iterable(rest))
            await connection.exec_driver_sql(self._statement(table, varying, len(rest)), last)

    def _statement(self, table: str, varying: list[int], rows: int) -> str:
        """Inserts so many rows that differ in these columns; what is alike is bound first, in the order of the columns."""
        columns, alike = self._columns[table], count(1)
        values = [
            f"column{varying.index(at) + 1}" if at in varying else f"?{next(alike)}" for at in range(len(columns))
        ]
        row = f"({', '.join('?' * len(varying))})"
        many = ", ".join([row] * rows)
        return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM (VALUES {many})"

    async def insert(self, connection: AsyncConnection, table: str, rows: Rows) -> None:
        """Adds to the cells of a rollup."""
        if rows:
            await connection.exec_driver_sql(self._add[table], rows)


class _PostgresqlWriter:
    """A batch travels by COPY (a fifth of the CPU), a handful of rows as one array per column, unnested there.

    COPY knows no ON CONFLICT, so ids that stand there already are asked for first. Where it fails all the same (another
    recorder wrote one of them meanwhile, or a value is impossible), its savepoint is rolled back and the arrays say what is what.
    """

    def __init__(self) -> None:
        self._insert: dict[str, str] = {}
        self._columns: dict[str, list[str]] = {}
        for table in _WRITTEN:
            columns = self._columns[table.name] = [column.name for column in table.columns]
            arrays = ", ".join(f"${at}::{_pg_type(column.type)}[]" for at, column in enumerate(table.columns, 1))
            conflict = _ROLLUPS[table.name].clause(table.name) if table.name in _ROLLUPS else ""
            self._insert[table.name] = (
                f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT * FROM unnest({arrays}){conflict}"
            )

    async def insert_new(self, connection: AsyncConnection, records: list[UsageRecord]) -> list[UsageRecord]:
        if len(records) >= _COPY_FROM:
            found = await connection.exec_driver_sql(_KNOWN, ([each.id for each in records],))
            known = {row[0].int for row in found}
            new = [each for each in records if each.id.int not in known] if known else records
            if not new or await self._copied(connection, new):
                return new
        new = await self._insert_absent(connection, records)
        for table in ("usage_lines", "attempts") if new else ():
            await self.insert(connection, table, ROWS[table](new, as_uuid))
        return new

    async def _copied(self, connection: AsyncConnection, records: list[UsageRecord]) -> bool:
        """Whether all of them were written; nothing was where not."""
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await connection.exec_driver_sql("SAVEPOINT metergate_copy")
        try:
            for table, rows_of in ROWS.items():
                if rows := rows_of(records, as_uuid):
                    await driver.copy_records_to_table(table, columns=self._columns[table], records=rows)
        except Exception:  # whatever it was: the other way meets it again, and says so in the terms of SQLAlchemy
            await connection.exec_driver_sql("ROLLBACK TO SAVEPOINT metergate_copy")
            return False
        await connection.exec_driver_sql("RELEASE SAVEPOINT metergate_copy")
        return True

    async def _insert_absent(self, connection: AsyncConnection, records: list[UsageRecord]) -> list[UsageRecord]:
        statement = self._insert["usage"] + " ON CONFLICT DO NOTHING RETURNING id"
        arrays = tuple(map(list, zip(*usage_rows(records, as_uuid), strict=True)))
        new = {row[0].int for row in await connection.exec_driver_sql(statement, arrays)}
        return [each for each in records if each.id.int in new]

    async def insert(self, connection: AsyncConnection, table: str, rows: Rows) -> None:
        if rows:
            await connection.exec_driver_sql(self._insert[table], tuple(map(list, zip(*rows, strict=True))))


def _pg_type(kind: Any) -> str:
    if isinstance(kind, RequestIdType):
        return "uuid"
    if isinstance(kind, Flag):
        return "boolean"
    return "bigint" if kind.python_type is int else "text"


def _writer(connection: AsyncConnection) -> _SqliteWriter | _PostgresqlWriter:
    return _sqlite_writer() if connection.dialect.name == "sqlite" else _postgresql_writer()


@cache
def _sqlite_writer() -> _SqliteWriter:
    return _SqliteWriter()


@cache
def _postgresql_writer() -> _PostgresqlWriter:
    return _PostgresqlWriter()
