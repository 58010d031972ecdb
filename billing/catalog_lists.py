"""Lists of catalog rows, in the order of their ids, a page at a time from behind the last id seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.exchange import RateKind, RateRow
from billing.prices import PriceRow
from billing.selling import SellRow
from billing.terms import TermsRow
from billing.usage import TokenClass


@dataclass(frozen=True, slots=True)
class PriceBookRow:
    """One published version: the version before it, plus `added` rows. `hash` chains over all versions."""

    version: int
    published_at_us: int
    hash: str
    note: str | None
    added: int


async def list_prices(
    connection: AsyncConnection,
    *,
    price_list: str | None = None,
    model: str | None = None,
    token_class: str | None = None,
    version: int | None = None,
    after: int = 0,
    limit: int,
) -> list[PriceRow]:
    """Price rows; with `version` only those that this version of the book holds."""
    columns = tables.price_rows.c
    where = _equal(tables.price_rows, price_list=price_list, model=model, token_class=token_class)
    if version is not None:
        where.append(columns.book_version <= version)
    rows = await _page(connection, tables.price_rows, PriceRow.__dataclass_fields__, where, after, limit)
    return [PriceRow(**{**row._mapping, "token_class": TokenClass(row.token_class)}) for row in rows]


async def list_rates(
    connection: AsyncConnection,
    *,
    kind: str | None = None,
    base: str | None = None,
    quote: str | None = None,
    after: int = 0,
    limit: int,
) -> list[RateRow]:
    where = _equal(tables.rate_rows, kind=kind, base=base, quote=quote)
    rows = await _page(connection, tables.rate_rows, RateRow.__dataclass_fields__, where, after, limit)
    return [RateRow(**{**row._mapping, "kind": RateKind(row.kind)}) for row in rows]


async def list_terms(
    connection: AsyncConnection,
    *,
    team_id: str | None = None,
    provider: str | None = None,
    after: int = 0,
    limit: int,
) -> list[TermsRow]:
    where = _equal(tables.terms_rows, team_id=team_id, provider=provider)
    rows = await _page(connection, tables.terms_rows, TermsRow.__dataclass_fields__, where, after, limit)
    return [TermsRow(**row._mapping) for row in rows]


async def list_sell(
    connection: AsyncConnection, *, team_id: str | None = None, after: int = 0, limit: int
) -> list[SellRow]:
    where = _equal(tables.sell_rows, team_id=team_id)
    rows = await _page(connection, tables.sell_rows, SellRow.__dataclass_fields__, where, after, limit)
    return [SellRow(**row._mapping) for row in rows]


async def list_price_books(connection: AsyncConnection, *, after: int = 0, limit: int) -> list[PriceBookRow]:
    books, rows = tables.price_books.c, tables.price_rows.c
    added = (
        select(func.count()).where(rows.book_version == books.version).correlate(tables.price_books).scalar_subquery()
    )
    query = (
        select(books.version, books.published_at_us, books.hash, books.note, added.label("added"))
        .where(books.version > after)
        .order_by(books.version)
        .limit(limit)
    )
    return [PriceBookRow(**row._mapping) for row in await connection.execute(query)]


def _equal(table: Table, **values: str | None) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in values.items() if value is not None]


async def _page(
    connection: AsyncConnection,
    table: Table,
    fields: Any,
    where: list[ColumnElement[bool]],
    after: int,
    limit: int,
) -> Sequence[Row[Any]]:
    query = (
        select(*(table.c[name] for name in fields)).where(table.c.id > after, *where).order_by(table.c.id).limit(limit)
    )
    return (await connection.execute(query)).all()
