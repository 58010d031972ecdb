"""Usage of any range, through any filter, as rows of FOCUS 1.2: what statements give out, by hour, day or month.

The rows are made span by span out of the rollups (of one key: out of the usage rows, for rollups of money do not know keys), so
that a file of any length needs little memory, and their BilledCost sums to what the ledger says, to the last nano. A span never
runs over the month that its team is billed by. Spans without usage are not asked for: a year has 8,760 hours for every team.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Label, Select, and_, case, exists, func, literal_column, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.errors import AmountOverflow
from billing.focus import FocusCatalog, FocusRow, usage_row
from billing.money import BEYOND
from billing.periods import intervals, period_bounds
from billing.reports import check_interval, check_range
from billing.statement_cells import ROLLUP_KEY, Cell, cell_of
from billing.statement_focus import catalog_of
from billing.tables import MONEY_SUMS, rollup_money, teams, usage, usage_lines
from billing.teams import TeamRow, get_team, list_teams
from billing.times import first_id_at, format_time

SPANS_AT_ONCE: Final = 8
_FILTERS: Final = ("model", "provider")
_NONE: Final[ColumnElement[str]] = literal_column("''")
_ZERO: Final[ColumnElement[int]] = literal_column("0")
"""Written out, so that PostgreSQL sees one expression in the columns and in GROUP BY."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FocusQuery:
    """A range on quarter-hours and its filters. `key_id` needs the `team_id` whose key it is; `key_name` stands in the rows."""

    start_us: int
    end_us: int
    interval: str = "day"
    timezone: str = "UTC"
    team_id: str | None = None
    key_id: str | None = None
    key_name: str | None = None
    model: str | None = None
    provider: str | None = None

    def check(self) -> None:
        """Raises `InvalidQuery`, or `InvalidTime` for an unknown zone."""
        check_interval(self.interval)
        check_range(self.start_us, self.end_us)
        period_bounds("day", self.timezone, self.start_us)
        assert self.key_id is None or self.team_id is not None


@dataclass(frozen=True, slots=True)
class _Head:
    """Who is billed for the rows, and for which month."""

    team_id: str
    team_name: str
    currency: str
    start: str
    end: str
    number: str | None = None


async def focus_teams(connection: AsyncConnection, asked: FocusQuery) -> list[TeamRow]:
    """The teams whose usage is asked for, those that used something. Raises `InvalidQuery` or `InvalidTime`."""
    asked.check()
    if asked.team_id is None:
        used = {row.id for row in await connection.execute(_used_teams(asked))}
        return [team for team in await list_teams(connection) if team.id in used]
    team = await get_team(connection, asked.team_id)
    return [] if team is None else [team]


def focus_months(asked: FocusQuery, team: TeamRow) -> list[Span]:
    """The range, cut where the team's months end."""
    return intervals("month", team.timezone, asked.start_us, asked.end_us)


async def used_quarters(connection: AsyncConnection, team: TeamRow, month: Span) -> list[int]:
    """The starts of the quarter-hours in which the team used something, in order."""
    at = rollup_money.c.bucket_us
    query = select(at).distinct().where(rollup_money.c.team_id == team.id, at >= month[0], at < month[1]).order_by(at)
    return list(await connection.scalars(query))


def focus_spans(asked: FocusQuery, month: Span, used: Sequence[int]) -> list[Sequence[Span]]:
    """The pieces in which a month's rows are read, in order: so many intervals at a time, of those that hold one of `used`."""
    spans = [span for span in intervals(asked.interval, asked.timezone, *month) if _holds(span, used)]
    return [spans[at : at + SPANS_AT_ONCE] for at in range(0, len(spans), SPANS_AT_ONCE)]


def _holds(span: Span, used: Sequence[int]) -> bool:
    at = bisect_left(used, span[0])
    return at < len(used) and used[at] < span[1]


@dataclass(frozen=True, slots=True)
class FocusPiece:
    """What some spans of a team's rows are made of."""

    asked: FocusQuery
    team: TeamRow
    spans: Sequence[Span]
    cells: Sequence[Cell]
    catalog: FocusCatalog


async def read_piece(
    connection: AsyncConnection, asked: FocusQuery, team: TeamRow, spans: Sequence[Span]
) -> FocusPiece:
    """Raises `AmountOverflow`."""
    cells = await _cells(connection, _query(asked, team, spans))
    return FocusPiece(asked, team, spans, cells, await catalog_of(connection, cells))


def rows_of_piece(piece: FocusPiece) -> list[FocusRow]:
    """Its rows in the order of their spans: arithmetic alone, a quarter of a millisecond a row."""
    asked, team, ends = piece.asked, piece.team, dict(piece.spans)
    rows = []
    for cell in piece.cells:
        start_us = cell.key.source_start_us
        month = period_bounds("month", team.timezone, start_us)
        assert month[1] is not None
        head = _Head(team.id, team.name, team.settlement_currency, format_time(month[0]), format_time(month[1]))
        row = usage_row(head, piece.catalog, cell, format_time(start_us), format_time(ends[start_us]))
        rows.append(row | {"SubAccountId": asked.key_id, "SubAccountName": asked.key_name})
    return rows


def _used_teams(asked: FocusQuery) -> Select[Any]:
    cell = rollup_money.c
    inside = (cell.team_id == teams.c.id, cell.bucket_us >= asked.start_us, cell.bucket_us < asked.end_us)
    return select(teams.c.id).where(exists().where(*inside))


def _query(asked: FocusQuery, team: TeamRow, spans: Sequence[Span]) -> Select[Any]:
    return _of_rollup(asked, team, spans) if asked.key_id is None else _of_rows(asked, team, spans)


def _of_rollup(asked: FocusQuery, team: TeamRow, spans: Sequence[Span]) -> Select[Any]:
    table = rollup_money
    parts = [and_(table.c.bucket_us >= start, table.c.bucket_us < end) for start, end in spans]
    span = _start(spans, parts)
    keys = [table.c[name] for name in ROLLUP_KEY]
    wanted = [table.c[name] == value for name in _FILTERS if (value := getattr(asked, name)) is not None]
    return (
        select(span, *keys, *(func.sum(table.c[name]).label(name) for name in MONEY_SUMS))
        .where(table.c.team_id == team.id, table.c.bucket_us >= spans[0][0], table.c.bucket_us < spans[-1][1], *wanted)
        .where(or_(*parts))
        .group_by(span, *keys)
    )


def _of_rows(asked: FocusQuery, team: TeamRow, spans: Sequence[Span]) -> Select[Any]:
    """The same sums out of a key's own rows and their lines."""
    row, line = usage.c, usage_lines.c
    parts = [and_(row.id >= first_id_at(start), row.id < first_id_at(end)) for start, end in spans]
    span = _start(spans, parts)
    keys: dict[str, Any] = {
        "model": row.model,
        "provider": func.coalesce(row.provider, _NONE),
        "provider_model": func.coalesce(row.provider_model, _NONE),
        "token_class": line.token_class,
        "price_row_id": func.coalesce(line.price_row_id, _ZERO),
        "terms_id": func.coalesce(row.terms_id, _ZERO),
        "sell_id": func.coalesce(row.sell_id, _ZERO),
        "rate_ids": row.rate_ids,
        "list_currency": func.coalesce(line.currency, _NONE),
        "settlement_currency": row.settlement_currency,
    }
    assert tuple(keys) == ROLLUP_KEY
    wanted = [row[name] == value for name in _FILTERS if (value := getattr(asked, name)) is not None]
    count = func.sum(case((row.kind == "reversal", -1), else_=1)).label("lines")
    sums = (func.sum(line[name]).label(name) for name in MONEY_SUMS[1:])
    return (
        select(span, *(value.label(name) for name, value in keys.items()), count, *sums)
        .select_from(usage.join(usage_lines, line.usage_id == row.id))
        .where(row.key_id == asked.key_id, row.team_id == team.id, *wanted)
        .where(row.id >= first_id_at(spans[0][0]), row.id < first_id_at(spans[-1][1]))
        .where(or_(*parts))
        .group_by(span, *keys.values())
    )


def _start(spans: Sequence[Span], parts: Sequence[ColumnElement[bool]]) -> Label[Any]:
    """The start of the span that a row is part of."""
    starts = (start for start, _ in spans)
    return case(*zip(parts, starts, strict=True), else_=None).label("source_start_us")


async def _cells(connection: AsyncConnection, query: Select[Any]) -> list[Cell]:
    """In the order of their spans. What corrections took back wholly leaves no row."""
    try:
        rows = (await connection.execute(query)).all()
    except DBAPIError as error:
        if "integer overflow" in str(error.orig):
            raise AmountOverflow(f"a sum of the range is {BEYOND}; ask for shorter intervals") from error
        raise
    cells = [cell for cell in map(cell_of, rows) if cell is not None and not cell.empty]
    return sorted(cells, key=lambda cell: cell.key)
