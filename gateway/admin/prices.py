"""The price book: post a row, and with it a new version; read rows. A published row never changes."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from billing.catalog_lists import list_prices
from billing.money import INT64_MAX
from billing.publishing import publish_prices
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.price_bodies import PostPrice, PriceAnswer, answer_of, draft_of
from gateway.admin.services import Injected

Filter = Annotated[str | None, QueryParameter(max_length=300)]


class PricePage(Struct, frozen=True):
    data: list[PriceAnswer]
    next_cursor: str | None


class PricesController(Controller):
    path = "/prices"
    tags = ("prices",)

    @post(summary="Publish a price: a new version of the book")
    async def create(self, data: JSONBody[PostPrice], rooms: Injected) -> PriceAnswer:
        draft = draft_of(data)
        async with rooms.write() as write:
            (row,) = await publish_prices(write.connection, [draft])
            return rooms.done(answer_of(row))

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
        return PricePage([answer_of(row) for row in page], next_cursor)
