"""What is issued is closed: a new price, rate or terms row must not start inside a month that a statement has stated."""

from __future__ import annotations

from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.errors import InvalidTime
from billing.statement_tables import statements
from billing.times import format_time


async def refuse_backdated(connection: AsyncConnection, effective_from_us: int, *, team_id: str | None = None) -> None:
    """Raises `InvalidTime` for `effective_from` before the end of the newest issued month, of that team or of any; a month whose
    statement was taken back whole is open again.

    No past row would move, as every row keeps the pins it was rated with; but the book would tell another story about the month
    than the statement does.
    """
    columns, note = statements.c, statements.alias("note")
    taken_back = exists().where(note.c.corrects_id == columns.id, note.c.kind == "credit_note")
    query = select(func.max(columns.end_us)).where(columns.kind == "statement", columns.state == "issued", ~taken_back)
    if team_id is not None:
        query = query.where(columns.team_id == team_id)
    closed_until_us: int | None = await connection.scalar(query)
    if closed_until_us is not None and effective_from_us < closed_until_us:
        raise InvalidTime(
            f"effective_from: {format_time(effective_from_us)} lies in a period whose statement is issued; "
            f"start at {format_time(closed_until_us)} or later",
            field="effective_from",
        )
