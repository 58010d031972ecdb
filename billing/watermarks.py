"""How far each journal is in the books. A month is closed when every journal's watermark is past its end.

The keeper of a journal promises: every request whose id is older than the watermark stands in the books. A watermark only
rises. A journal that is shipped to its end stands in nobody's way.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.statement_tables import journal_watermarks
from billing.times import now_us


@dataclass(frozen=True, slots=True)
class Watermark:
    """`complete_at_us`: when the journal was found shipped to its end, its writer dead; None while more may come."""

    journal: str
    watermark_us: int
    complete_at_us: int | None
    updated_at_us: int


async def raise_watermark(
    connection: AsyncConnection, journal: str, watermark_us: int, *, complete: bool = False
) -> None:
    """Enter the journal, or raise its watermark; a lower one than what stands changes nothing. `complete` stays."""
    at_us = now_us()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    table = journal_watermarks
    statement = dialect.insert(table).values(
        journal=journal,
        watermark_us=watermark_us,
        complete_at_us=at_us if complete else None,
        updated_at_us=at_us,
    )
    new = statement.excluded
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=["journal"],
            set_={
                "watermark_us": case(
                    (new.watermark_us > table.c.watermark_us, new.watermark_us), else_=table.c.watermark_us
                ),
                "complete_at_us": case(
                    (table.c.complete_at_us.is_not(None), table.c.complete_at_us), else_=new.complete_at_us
                ),
                "updated_at_us": new.updated_at_us,
            },
        )
    )


async def journals_behind(connection: AsyncConnection, at_us: int) -> list[Watermark]:
    """The journals that may still bring requests older than `at_us`, the furthest behind first."""
    columns = journal_watermarks.c
    query = (
        select(journal_watermarks)
        .where(columns.complete_at_us.is_(None), columns.watermark_us < at_us)
        .order_by(columns.watermark_us, columns.journal)
    )
    return [Watermark(**row._mapping) for row in await connection.execute(query)]


async def list_watermarks(connection: AsyncConnection, since_us: int = 0) -> list[Watermark]:
    """Journals that are not complete, and those completed since `since_us`, by name."""
    columns = journal_watermarks.c
    wanted = or_(columns.complete_at_us.is_(None), columns.complete_at_us >= since_us)
    query = select(journal_watermarks).where(wanted).order_by(columns.journal)
    return [Watermark(**row._mapping) for row in await connection.execute(query)]
