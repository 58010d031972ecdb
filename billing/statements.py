"""Statements per team and month: draft, issued, credited.

A draft may be made again as often as one likes. An issued statement never changes: it has the next number of the installation,
and a hash over the document and the hash before it. What is wrong with it is put right by a credit note (`credit_notes`); after
one over the whole, the month may be stated again. What arrives late stands as a prior-period line on the next one
(`statement_cells`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import statement_documents as documents
from billing.database import bump_catalog_version
from billing.errors import Conflict, InvalidQuery, NotFound
from billing.periods import period_bounds, zone_of
from billing.prices import PriceRow
from billing.selling import SellRow
from billing.statement_balances import balances_of
from billing.statement_cells import Cell, store_cells, unstated_cells
from billing.statement_documents import StatementDocument, number_text
from billing.statement_tables import statements
from billing.tables import price_rows, rollup_money, sell_rows
from billing.teams import TeamRow, get_team
from billing.times import QUARTER_US, datetime_of, format_time, now_us, us_of
from billing.usage import TokenClass
from billing.watermarks import journals_behind

STATEMENT: Final = "statement"
CREDIT_NOTE: Final = "credit_note"
PARTIAL_CREDIT: Final = "partial_credit_note"
GRACE_US: Final = QUARTER_US
"""A month is closed a quarter-hour after its end: a process born within it has entered its journal by then."""


@dataclass(frozen=True, slots=True)
class StatementRow:
    """`hash` and `number` are None for a draft. `credited_by`: the id of the credit note that took it back; `credited_nano`: what
    notes over parts of it took off. `credit_nano`: what this one, a note over a part, takes off."""

    id: int
    team_id: str
    kind: str
    state: str
    month: str
    start_us: int
    end_us: int
    number: int | None
    corrects_id: int | None
    credit_nano: int | None
    credited_by: int | None
    credited_nano: int
    document: StatementDocument
    hash: str | None
    created_at_us: int
    issued_at_us: int | None


def month_bounds(month: str, timezone: str) -> tuple[int, int]:
    """Start (inside) and end (outside) of "2026-11" in that zone. Raises `InvalidQuery` for anything but a month."""
    try:
        first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidQuery(f"month: {month!r} is no month such as 2026-11", field="month") from error
    if len(month) != 7 or not 2000 <= first.year < 2100:
        raise InvalidQuery(f"month: {month!r} is no month such as 2026-11", field="month")
    start, end = period_bounds("month", timezone, us_of(first.replace(day=15)))
    assert end is not None
    return start, end


def month_of(at_us: int, timezone: str) -> str:
    """The month of a moment, as "2026-11"."""
    return f"{datetime_of(at_us).astimezone(zone_of(timezone)):%Y-%m}"


async def draft_statement(connection: AsyncConnection, team_id: str, month: str) -> StatementRow:
    """Make the draft of a month, or make it again from what the books hold now. The month may still be running.

    Raises `NotFound`, `InvalidQuery` for a month that has not begun, `Conflict` where the month is issued already.
    """
    await bump_catalog_version(connection)
    team = await _team(connection, team_id)
    start_us, end_us = month_bounds(month, team.timezone)
    if start_us > now_us():
        raise InvalidQuery(f"month: {month} has not begun in {team.timezone}", field="month")
    await _refuse_issued(connection, team, month, start_us)
    document, _ = await _state(connection, team, month, start_us, end_us)
    values = {"start_us": start_us, "end_us": end_us, "document": documents.encode(document)}
    columns = statements.c
    same = and_(columns.team_id == team_id, columns.month == month, columns.state == "draft")
    row_id = await connection.scalar(update(statements).where(same).values(values).returning(columns.id))
    if row_id is None:
        new = {**values, "team_id": team_id, "kind": STATEMENT, "state": "draft", "month": month}
        row_id = await connection.scalar(insert(statements).values(**new, created_at_us=now_us()).returning(columns.id))
    return await get_statement(connection, team_id, row_id or 0)


async def discard_draft(connection: AsyncConnection, team_id: str, statement_id: int) -> None:
    """Throw a draft away. Raises `NotFound`, and `Conflict` for an issued statement."""
    await bump_catalog_version(connection)
    row = await get_statement(connection, team_id, statement_id)
    if row.state != "draft":
        raise Conflict(f"id: {named(row)} is issued and stays; issue a credit note", field="id")
    await connection.execute(delete(statements).where(statements.c.id == row.id))


async def issue_statement(
    connection: AsyncConnection, team_id: str, statement_id: int, *, without_journals: Sequence[str] = ()
) -> StatementRow:
    """Close the month: state what the books hold now, give it the next number and its hash. It never changes again.

    Raises `Conflict` while the month is not over for a quarter-hour, while an earlier month with usage is not issued, or while a
    journal may still bring requests of the month; `without_journals` gives up such journals by name, and the statement says so.
    """
    await bump_catalog_version(connection)
    team = await _team(connection, team_id)
    draft = await get_statement(connection, team_id, statement_id)
    if draft.state != "draft":
        raise Conflict(f"id: {named(draft)} is issued already", field="id")
    start_us, end_us = month_bounds(draft.month, team.timezone)
    await _refuse_issued(connection, team, draft.month, start_us)
    at_us = now_us()
    if at_us < end_us + GRACE_US:
        raise Conflict(
            f"month: {draft.month} can be issued from {format_time(end_us + GRACE_US)} on ({team.timezone})",
            field="month",
        )
    await _refuse_gap(connection, team, start_us)
    await _refuse_behind(connection, end_us, without_journals)
    document, cells = await _state(
        connection, team, draft.month, start_us, end_us, without_journals=sorted(set(without_journals))
    )
    return await close_document(connection, document, cells, draft.id, start_us, end_us)


async def cells_of_draft(connection: AsyncConnection, row: StatementRow) -> tuple[StatementDocument, list[Cell]]:
    """A draft's document and cells as the books stand now."""
    team = await _team(connection, row.team_id)
    start_us, end_us = month_bounds(row.month, team.timezone)
    return await _state(connection, team, row.month, start_us, end_us)


async def get_statement(connection: AsyncConnection, team_id: str, statement_id: int) -> StatementRow:
    """Raises `NotFound`: also for another team's statement."""
    columns = statements.c
    query = _select().where(columns.id == statement_id, columns.team_id == team_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise NotFound(f"no statement {statement_id} of team {team_id}", field="id")
    return _row(row)


async def list_statements(
    connection: AsyncConnection, team_id: str, *, month: str | None = None, after: int = 0, limit: int
) -> list[StatementRow]:
    """A team's drafts, statements and credit notes, by id from behind `after`."""
    columns = statements.c
    query = _select().where(columns.team_id == team_id, columns.id > after).order_by(columns.id).limit(limit)
    if month is not None:
        query = query.where(columns.month == month)
    return [_row(row) for row in await connection.execute(query)]


async def broken_links(connection: AsyncConnection) -> list[str]:
    """Numbers of issued documents whose hash does not follow from document and predecessor, or that are missing in the count:
    empty unless somebody went past this program."""
    broken: list[str] = []
    previous, expected = "", 1
    columns = statements.c
    query = select(columns.number, columns.document, columns.hash).where(columns.state == "issued")
    for row in await connection.execute(query.order_by(columns.number)):
        while expected < row.number:
            broken.append(number_text(expected))
            expected += 1
        if row.hash != _hash(previous, row.document):
            broken.append(number_text(row.number))
        previous, expected = row.hash, row.number + 1
    return broken


async def _state(
    connection: AsyncConnection,
    team: TeamRow,
    month: str,
    start_us: int,
    end_us: int,
    without_journals: Sequence[str] = (),
) -> tuple[StatementDocument, list[Cell]]:
    """The document of a month as the books stand, and the cells behind it."""
    months = {start_us: (end_us, month)}
    columns = statements.c
    earlier = select(columns.start_us, columns.end_us, columns.month).where(
        columns.team_id == team.id, columns.state == "issued", columns.start_us < start_us
    )
    for row in await connection.execute(earlier.distinct()):
        months[row.start_us] = (row.end_us, row.month)
    spans = [(start, end) for start, (end, _) in sorted(months.items())]
    cells = await unstated_cells(connection, team.id, spans)
    lines = documents.lines_of(
        cells,
        start_us=start_us,
        currency=team.settlement_currency,
        months={start: name for start, (_, name) in months.items()},
        prices=await price_rows_of(connection, {cell.key.price_row_id for cell in cells}),
        sells=await sell_rows_of(connection, {cell.key.sell_id for cell in cells}),
    )
    document = StatementDocument(
        kind=STATEMENT,
        number=None,
        team_id=team.id,
        team_name=team.name,
        month=month,
        timezone=team.timezone,
        start=format_time(start_us),
        end=format_time(end_us),
        currency=team.settlement_currency,
        issued_at=None,
        corrects=None,
        reason=None,
        without_journals=list(without_journals),
        lines=lines,
        totals=documents.totals_of(lines, team.settlement_currency),
        balances=await balances_of(connection, team, start_us, end_us),
    )
    return document, cells


async def price_rows_of(connection: AsyncConnection, ids: set[int]) -> dict[int, PriceRow]:
    """The price rows of these ids, as far as they exist."""
    columns = [price_rows.c[name] for name in PriceRow.__dataclass_fields__]
    rows = await connection.execute(select(*columns).where(price_rows.c.id.in_(sorted(ids))))
    return {row.id: PriceRow(**{**row._mapping, "token_class": TokenClass(row.token_class)}) for row in rows}


async def sell_rows_of(connection: AsyncConnection, ids: set[int]) -> dict[int, SellRow]:
    """The sell rows of these ids, as far as they exist."""
    columns = [sell_rows.c[name] for name in SellRow.__dataclass_fields__]
    rows = await connection.execute(select(*columns).where(sell_rows.c.id.in_(sorted(ids))))
    return {row.id: SellRow(**row._mapping) for row in rows}


async def close_document(
    connection: AsyncConnection,
    document: StatementDocument,
    cells: Sequence[Cell],
    draft: int | dict[str, Any],
    start_us: int,
    end_us: int,
) -> StatementRow:
    """Number, hash and store a draft, or a new row of these values; the catalog's lock, which every writer here holds, makes the
    numbers gapless."""
    at_us = now_us()
    columns = statements.c
    last = (
        await connection.execute(
            select(columns.number, columns.hash)
            .where(columns.number.is_not(None))
            .order_by(columns.number.desc())
            .limit(1)
        )
    ).one_or_none()
    number, previous = (1, "") if last is None else (last.number + 1, last.hash)
    text = documents.encode(documents.replaced(document, number=number_text(number), issued_at=format_time(at_us)))
    closed = {
        "state": "issued",
        "start_us": start_us,
        "end_us": end_us,
        "number": number,
        "document": text,
        "hash": _hash(previous, text),
        "issued_at_us": at_us,
    }
    if isinstance(draft, dict):
        row_id = await connection.scalar(insert(statements).values({**draft, **closed}).returning(columns.id))
        assert row_id is not None
    else:
        row_id = draft
        await connection.execute(update(statements).where(columns.id == row_id).values(closed))
    await store_cells(connection, row_id, cells)
    return await get_statement(connection, document.team_id, row_id)


def _hash(previous: str, document: str) -> str:
    return hashlib.sha256(f"{previous}\n{document}".encode()).hexdigest()


async def _team(connection: AsyncConnection, team_id: str) -> TeamRow:
    team = await get_team(connection, team_id)
    if team is None:
        raise NotFound(f"no team {team_id}", field="id")
    return team


async def _refuse_issued(connection: AsyncConnection, team: TeamRow, month: str, start_us: int) -> None:
    standing = await connection.scalar(_standing(team.id).where(statements.c.start_us == start_us))
    if standing is not None:
        raise Conflict(
            f"month: {month} of team {team.id} is issued as {number_text(standing)}; credit that one first",
            field="month",
        )


def _standing(team_id: str) -> Any:
    """Numbers of the team's issued statements that no credit note took back."""
    columns, credit = statements.c, statements.alias("credit")
    return (
        select(columns.number)
        .outerjoin(credit, _takes_back(credit))
        .where(columns.team_id == team_id, columns.kind == STATEMENT, columns.state == "issued", credit.c.id.is_(None))
    )


async def _refuse_gap(connection: AsyncConnection, team: TeamRow, start_us: int) -> None:
    """Usage of an earlier month that no standing statement covers would be stated nowhere."""
    columns, credit = statements.c, statements.alias("credit")
    covered = (
        await connection.execute(
            select(columns.start_us, columns.end_us)
            .outerjoin(credit, _takes_back(credit))
            .where(
                columns.team_id == team.id,
                columns.kind == STATEMENT,
                columns.state == "issued",
                columns.start_us < start_us,
                credit.c.id.is_(None),
            )
            .order_by(columns.start_us)
        )
    ).all()
    edges = [0, *(edge for row in covered for edge in (row.start_us, row.end_us)), start_us]
    bucket = rollup_money.c.bucket_us
    gaps = [and_(bucket >= low, bucket < high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high]
    query = select(func.min(bucket)).where(rollup_money.c.team_id == team.id, or_(*gaps))
    first: int | None = await connection.scalar(query)
    if first is not None:
        month = month_of(first, team.timezone)
        raise Conflict(f"month: {month} has usage and no issued statement; issue {month} first", field="month")


async def _refuse_behind(connection: AsyncConnection, end_us: int, without: Sequence[str]) -> None:
    behind = await journals_behind(connection, end_us)
    waiting = [each for each in behind if each.journal not in without]
    unknown = sorted(set(without) - {each.journal for each in behind})
    if unknown:
        raise InvalidQuery(f"without_journals: {unknown[0]} is not behind", field="without_journals")
    if waiting:
        names = ", ".join(f"{each.journal} (at {format_time(each.watermark_us)})" for each in waiting[:5])
        raise Conflict(
            f"without_journals: {len(waiting)} journal(s) may still bring requests of the month: {names}. Start a gateway over "
            "their folder, or give them up by name",
            field="without_journals",
        )


def named(row: StatementRow) -> str:
    """Its number, as a message names it."""
    return f"draft {row.id}" if row.number is None else number_text(row.number)


def _takes_back(credit: Any) -> ColumnElement[bool]:
    """That the note takes the whole statement back."""
    return and_(credit.c.corrects_id == statements.c.id, credit.c.kind == CREDIT_NOTE)


def _select() -> Any:
    credit, part = statements.alias("credit"), statements.alias("part")
    credited = select(func.coalesce(func.sum(part.c.credit_nano), 0)).where(part.c.corrects_id == statements.c.id)
    return select(
        statements, credit.c.id.label("credited_by"), credited.scalar_subquery().label("credited_nano")
    ).outerjoin(credit, _takes_back(credit))


def _row(row: Row[Any]) -> StatementRow:
    values = dict(row._mapping)
    values |= {"document": documents.decode(row.document), "credited_nano": int(row.credited_nano)}
    return StatementRow(**values)
