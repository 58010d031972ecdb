"""The ledger: usage rows go in once, with their lines, attempts and rollups, and debit their wallets, in one transaction.

`record` may be given any batch any number of times, in any order, by several writers at once: a row whose id stands in the
books already adds nothing anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.coarse import COARSE
from billing.columns import Flag, RequestIdType
from billing.database import is_overflow
from billing.errors import AmountOverflow
from billing.folding import hold_mark
from billing.money import BEYOND
from billing.reads import list_usage, usage_row
from billing.records import AttemptRecord, RecordResult, UsageRecord, UsageView
from billing.reports import usage_buckets
from billing.rollups import Rows, ids_text, late_rows, money_rows, traffic_rows
from billing.spending import spent
from billing.times import now_us
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

_SQLITE_IDS_PER_QUERY: Final = 500
_COPY_FROM: Final = 20
"""From this many rows on, the two round trips of a savepoint are worth it."""
_KNOWN: Final = "SELECT id FROM usage WHERE id = ANY($1::uuid[])"
_encode: Final = msgspec.json.Encoder().encode


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


def _as_bytes(request_id: UUID | None) -> bytes | None:
    return None if request_id is None else request_id.int.to_bytes(16, "big")


def _as_uuid(request_id: UUID | None) -> UUID | None:
    return request_id


def _usage_rows(records: Iterable[UsageRecord], as_id: Any) -> list[tuple[Any, ...]]:
    recorded_at_us = now_us()
    rows = []
    for each in records:
        usage, rated, pins = each.usage, each.rated, each.pins
        listed, settled, policy, reference, cost = rated.list, rated.settled, rated.policy, rated.reference, rated.cost
        rows.append(
            (
                as_id(each.id),
                each.kind,
                as_id(each.corrects_id),
                each.team_id,
                each.key_id,
                each.model,
                each.provider,
                each.provider_model,
                each.surface,
                each.status,
                each.estimated,
                each.streamed,
                usage.total_input,
                usage.total_output,
                usage.reasoning,
                usage.compute_us,
                usage.flaw,
                None if listed is None else listed.currency,
                None if listed is None else listed.nano,
                each.settlement_currency,
                None if settled is None else settled.nano,
                None if policy is None else policy.nano,
                None if reference is None else reference.nano,
                None if cost is None else cost.currency,
                None if cost is None else cost.nano,
                rated.terms_id,
                ids_text(rated.rate_ids),
                rated.unpriced,
                pins.book,
                pins.rates,
                pins.terms,
                pins.sell,
                rated.sell_id,
                None if rated.margin is None else rated.margin.nano,
                _encode(each.tags).decode() if each.tags else "{}",
                each.latency_us,
                each.ttft_us,
                each.error,
                recorded_at_us,
            )
        )
    return rows


def _line_rows(records: Iterable[UsageRecord], as_id: Any) -> list[tuple[Any, ...]]:
    rows = []
    for each in records:
        usage_id = as_id(each.id)
        for line in each.rated.lines:
            rows.append(
                (
                    usage_id,
                    str(line.token_class),
                    line.quantity,
                    line.price_row_id,
                    line.currency,
                    line.list_nano,
                    line.settled_nano,
                    line.policy_nano,
                    line.reference_nano,
                )
            )
    return rows


def _attempt_rows(records: Iterable[UsageRecord], as_id: Any) -> list[tuple[Any, ...]]:
    rows = []
    for each in records:
        usage_id = as_id(each.id)
        for attempt in each.attempts:
            cost, hour = attempt.cost, attempt.cost_per_hour
            rows.append(
                (
                    usage_id,
                    attempt.sequence,
                    attempt.provider,
                    attempt.provider_model,
                    attempt.status,
                    None if attempt.usage is None else _encode(attempt.usage).decode(),
                    None if cost is None else cost.currency,
                    None if cost is None else cost.nano,
                    ids_text(attempt.price_row_ids),
                    attempt.error,
                    attempt.started_at_us,
                    attempt.latency_us,
                    attempt.ttft_us,
                    attempt.service_tier,
                    attempt.processing,
                    None if hour is None else hour.currency,
                    None if hour is None else hour.nano,
                )
            )
    return rows


_ROWS: Final = {"usage": _usage_rows, "usage_lines": _line_rows, "attempts": _attempt_rows}
"""What a batch of records is in each table."""


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
    """executemany over prepared statements. Existing ids are looked up first: the transaction holds the only write lock."""

    def __init__(self) -> None:
        self._insert: dict[str, str] = {}
        for table in _WRITTEN:
            columns = [column.name for column in table.columns]
            conflict = _ROLLUPS[table.name].clause(table.name) if table.name in _ROLLUPS else ""
            self._insert[table.name] = (
                f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}){conflict}"
            )

    async def insert_new(self, connection: AsyncConnection, records: list[UsageRecord]) -> list[UsageRecord]:
        known: set[bytes] = set()
        ids = [_as_bytes(each.id) for each in records]
        for start in range(0, len(ids), _SQLITE_IDS_PER_QUERY):
            chunk = ids[start : start + _SQLITE_IDS_PER_QUERY]
            marks = ",".join("?" * len(chunk))
            result = await connection.exec_driver_sql(f"SELECT id FROM usage WHERE id IN ({marks})", tuple(chunk))
            known.update(row[0] for row in result)
        new = [each for each, id_ in zip(records, ids, strict=True) if id_ not in known]
        for table, rows_of in _ROWS.items():
            await self.insert(connection, table, rows_of(new, _as_bytes))
        return new

    async def insert(self, connection: AsyncConnection, table: str, rows: Rows) -> None:
        if rows:
            await connection.exec_driver_sql(self._insert[table], rows)


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
            await self.insert(connection, table, _ROWS[table](new, _as_uuid))
        return new

    async def _copied(self, connection: AsyncConnection, records: list[UsageRecord]) -> bool:
        """Whether all of them were written; nothing was where not."""
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await connection.exec_driver_sql("SAVEPOINT metergate_copy")
        try:
            for table, rows_of in _ROWS.items():
                if rows := rows_of(records, _as_uuid):
                    await driver.copy_records_to_table(table, columns=self._columns[table], records=rows)
        except Exception:  # whatever it was: the other way meets it again, and says so in the terms of SQLAlchemy
            await connection.exec_driver_sql("ROLLBACK TO SAVEPOINT metergate_copy")
            return False
        await connection.exec_driver_sql("RELEASE SAVEPOINT metergate_copy")
        return True

    async def _insert_absent(self, connection: AsyncConnection, records: list[UsageRecord]) -> list[UsageRecord]:
        statement = self._insert["usage"] + " ON CONFLICT DO NOTHING RETURNING id"
        arrays = tuple(map(list, zip(*_usage_rows(records, _as_uuid), strict=True)))
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
