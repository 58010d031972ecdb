"""Prices, rates, terms and sell prices as one immutable value, and the pins that make a lookup deterministic for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.exchange import RateBook, RateKind, RateRow
from billing.prices import PriceBook, PriceRow
from billing.selling import SellBook, SellRow
from billing.tables import price_rows, rate_rows, sell_rows, terms_rows
from billing.terms import TermsBook, TermsRow
from billing.usage import TokenClass


class Pins(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """High-water marks of the four books when a request was opened. Whoever rates it, however late, sees no newer row."""

    book: int
    rates: int
    terms: int
    sell: int = 0


@dataclass(frozen=True, slots=True)
class Books:
    """The whole history of prices, rates, terms and sell prices."""

    prices: PriceBook
    rates: RateBook
    terms: TermsBook
    sell: SellBook = field(default_factory=SellBook)
    derived: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    """What `billing.plans` makes out of them and keeps beside them."""

    def pins(self) -> Pins:
        return Pins(self.prices.version, self.rates.version, self.terms.version, self.sell.version)


EMPTY_PINS = Pins(0, 0, 0)


async def load_books(connection: AsyncConnection) -> Books:
    """Every price, rate, terms and sell row. Ids commit in order, so whatever is read is a whole prefix of each book."""
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
    columns = [sell_rows.c[name] for name in SellRow.__dataclass_fields__]
    sell = [SellRow(**row._mapping) for row in await connection.execute(select(*columns))]
    return Books(PriceBook(prices), RateBook(rates), TermsBook(terms), SellBook(sell))
