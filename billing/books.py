"""Prices, rates and terms as one immutable value, and the pins that make a lookup in them deterministic for ever."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exchange import RateBook, RateKind, RateRow
from billing.prices import PriceBook, PriceRow
from billing.tables import price_rows, rate_rows, terms_rows
from billing.terms import TermsBook, TermsRow
from billing.usage import TokenClass


class Pins(msgspec.Struct, frozen=True, array_like=True):
    """High-water marks of the three books when a request was opened. Whoever rates it, however late, sees no newer row."""

    book: int
    rates: int
    terms: int


@dataclass(frozen=True, slots=True)
class Books:
    """The whole history of prices, rates and terms."""

    prices: PriceBook
    rates: RateBook
    terms: TermsBook

    def pins(self) -> Pins:
        return Pins(self.prices.version, self.rates.version, self.terms.version)


EMPTY_PINS = Pins(0, 0, 0)


async def load_books(connection: AsyncConnection) -> Books:
    """Every price, rate and terms row. Ids commit in order, so whatever is read is a whole prefix of each book."""
    columns = [price_rows.c[name] for name in PriceRow.__dataclass_fields__]
    prices = [
        PriceRow(**{**row._mapping, "token_class": TokenClass(row.token_class)})
        for row in await connection.execute(select(*columns))
    ]
    columns = [rate_rows.c[name] for name in RateRow.__dataclass_fields__]
    rates = [
        RateRow(**{**row._mapping, "kind": RateKind(row.kind)}) for row in await connection.execute(select(*columns))
    ]
    columns = [terms_rows.c[name] for name in TermsRow.__dataclass_fields__]
    terms = [TermsRow(**row._mapping) for row in await connection.execute(select(*columns))]
    return Books(PriceBook(prices), RateBook(rates), TermsBook(terms))
