"""The book that ships with the product, entered once into an empty database."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.database import bump_catalog_version
from billing.price_file import PriceFile, parse_yaml
from billing.publishing import publish_prices
from billing.recording import record_rate
from billing.times import parse_time


def shipped_book() -> PriceFile:
    """The prices and rates of `price_book.yaml`."""
    return parse_yaml(Path(__file__).with_name("price_book.yaml").read_text(encoding="utf-8"))


async def seed(connection: AsyncConnection) -> bool:
    """Publish the shipped book as version 1 and record the shipped rates. False, and nothing done, when the book is not empty:
    an update of the product never changes an operator's prices."""
    await bump_catalog_version(connection)
    if await connection.scalar(select(tables.price_books.c.version).limit(1)) is not None:
        return False
    book = shipped_book()
    await publish_prices(connection, book.drafts, book.note)
    if await connection.scalar(select(tables.rate_rows.c.id).limit(1)) is None:
        for each in book.rates:
            await record_rate(
                connection,
                base=each.base,
                quote=each.quote,
                kind=each.kind,
                rate=each.rate,
                source=each.source,
                effective_from_us=parse_time(each.effective_from, "effective_from"),
            )
    return True
