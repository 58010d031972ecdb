"""The FOCUS rows of a stored statement: its cells, and the catalog rows they name, out of the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exchange import RateKind, RateRow
from billing.focus import FocusCatalog, FocusRow, FocusSource, focus_rows
from billing.reads import parse_ids
from billing.statement_cells import Cell, stated_by
from billing.statement_tables import statements
from billing.statements import StatementRow, cells_of_draft, price_rows_of, sell_rows_of
from billing.tables import rate_rows, terms_rows
from billing.terms import TermsRow
from billing.times import format_time


async def statement_focus(connection: AsyncConnection, row: StatementRow) -> list[FocusRow]:
    """Rows of an issued document as it was stated, of a draft as the books stand now (and the draft with them)."""
    if row.state == "draft":
        document, cells = await cells_of_draft(connection, row)
    else:
        document, cells = row.document, await stated_by(connection, row.id)
    columns = statements.c
    spans = select(columns.start_us, columns.end_us).where(columns.team_id == row.team_id).distinct()
    months = {
        each.start_us: (format_time(each.start_us), format_time(each.end_us))
        for each in await connection.execute(spans)
    }
    return focus_rows(FocusSource(document, cells, months, await catalog_of(connection, cells)))


async def catalog_of(connection: AsyncConnection, cells: Sequence[Cell]) -> FocusCatalog:
    """The catalog rows that these cells name."""
    rates = {rate_id for cell in cells for rate_id in parse_ids(cell.key.rate_ids)}
    terms = {cell.key.terms_id for cell in cells}
    return FocusCatalog(
        prices=await price_rows_of(connection, {cell.key.price_row_id for cell in cells}),
        sells=await sell_rows_of(connection, {cell.key.sell_id for cell in cells}),
        terms={
            each.id: TermsRow(**each._mapping)
            for each in await connection.execute(
                select(*(terms_rows.c[name] for name in TermsRow.__dataclass_fields__)).where(
                    terms_rows.c.id.in_(sorted(terms))
                )
            )
        },
        rates={
            each.id: RateRow(**{**each._mapping, "kind": RateKind(each.kind)})
            for each in await connection.execute(
                select(*(rate_rows.c[name] for name in RateRow.__dataclass_fields__)).where(
                    rate_rows.c.id.in_(sorted(rates))
                )
            )
        },
    )
