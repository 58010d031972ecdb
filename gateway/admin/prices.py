"""The price book: post a row, and with it a new version; read rows and versions. A published row never changes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from billing.catalog_lists import PriceBookRow, list_price_books, list_prices
from billing.money import INT64_MAX
from billing.prices import PriceRow
from billing.publishing import publish_price
from billing.records import PriceView
from billing.times import now_us
from billing.usage import TokenClass
from billing.views import price_view
from gateway.admin.failures import invalid
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.services import Injected
from gateway.admin.texts import Currency, Decimal, Moment, Note, Text, moment, moment_us

Filter = Annotated[str | None, QueryParameter(max_length=300)]


class PostPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """A price per `unit`, as `amount` or under its everyday name `amount_per_mtok`; at most six decimals.

    `provider` is a price list: a provider's name, or its `price_as`. Without `effective_from` it holds from now on.
    """

    provider: Text
    model: Text
    token_class: TokenClass
    currency: Currency
    amount_per_mtok: Decimal | None = None
    amount: Decimal | None = None
    effective_from: Moment | None = None
    unit: Literal["mtok", "request", "second", "image", "hour"] | None = None
    service_tier: Text = "default"
    processing: Literal["standard", "batch"] = "standard"
    min_input_tokens: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    source: Note | None = None


class PriceAnswer(PriceView, frozen=True):
    """`amount` is per `unit`; `amount_per_mtok` is the same for a price per million tokens, else null."""

    amount_per_mtok: str | None


class PricePage(Struct, frozen=True):
    data: list[PriceAnswer]
    next_cursor: str | None


class PriceBookView(Struct, frozen=True):
    version: int
    published_at: str | None
    hash: str
    note: str | None
    added: int
    """Rows that this version added to the one before."""


class PriceBookPage(Struct, frozen=True):
    data: list[PriceBookView]
    next_cursor: str | None


class PricesController(Controller):
    path = "/prices"
    tags = ("prices",)

    @post(summary="Publish a price: a new version of the book")
    async def create(self, data: JSONBody[PostPrice], rooms: Injected) -> PriceAnswer:
        amounts = [amount for amount in (data.amount_per_mtok, data.amount) if amount is not None]
        if len(amounts) != 1:
            raise invalid("amount_per_mtok: give it, or amount, and not both", "amount_per_mtok")
        effective_from_us = moment_us(data.effective_from, "effective_from")
        async with rooms.write() as write:
            row = await publish_price(
                write.connection,
                price_list=data.provider,
                model=data.model,
                token_class=data.token_class,
                currency=data.currency,
                amount=amounts[0],
                effective_from_us=now_us() if effective_from_us is None else effective_from_us,
                unit=data.unit,
                service_tier=data.service_tier,
                processing=data.processing,
                min_input_tokens=data.min_input_tokens,
                source=data.source,
            )
        return _answer(row)

    @get(summary="List price rows in the order they were published")
    async def index(
        self,
        rooms: Injected,
        provider: Filter = None,
        model: Filter = None,
        token_class: Filter = None,
        version: Annotated[
            int | None, QueryParameter(ge=0, le=INT64_MAX, description="Only rows that this version of the book holds.")
        ] = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> PricePage:
        async with rooms.read() as connection:
            rows = await list_prices(
                connection,
                price_list=provider,
                model=model,
                token_class=token_class,
                version=version,
                after=after_id(cursor),
                limit=limit + 1,
            )
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return PricePage([_answer(row) for row in page], next_cursor)


class PriceBooksController(Controller):
    path = "/price-books"
    tags = ("prices",)

    @get(summary="List the published versions of the book")
    async def index(self, rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> PriceBookPage:
        async with rooms.read() as connection:
            rows = await list_price_books(connection, after=after_id(cursor), limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.version)
        return PriceBookPage([_book(row) for row in page], next_cursor)


def _answer(row: PriceRow) -> PriceAnswer:
    fields: dict[str, Any] = msgspec.structs.asdict(price_view(row))
    return PriceAnswer(**fields, amount_per_mtok=fields["amount"] if row.unit == "mtok" else None)


def _book(row: PriceBookRow) -> PriceBookView:
    return PriceBookView(row.version, moment(row.published_at_us), row.hash, row.note, row.added)
