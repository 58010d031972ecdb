"""The price book: post a row, and with it a new version; read rows. A published row never changes."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct
from msgspec.structs import asdict

from billing.catalog_lists import list_prices
from billing.money import INT64_MAX
from billing.prices import PriceRow
from billing.publishing import publish_prices
from billing.times import now_us
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.price_bodies import PostPrice, PriceAnswer, answer_of, draft_of
from gateway.admin.services import Injected, Rooms
from gateway.price_drift import DriftReport

Filter = Annotated[str | None, QueryParameter(max_length=300)]


class PublishPrice(PostPrice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """With `supersede` it takes the place of another amount for the same key and moment, from the new version of the book on."""

    supersede: bool = False


class PublishedPrice(PriceAnswer, frozen=True, kw_only=True):
    """`warnings` say what may be a slip: nothing was refused."""

    warnings: list[str]


class ListedPrice(PriceAnswer, frozen=True, kw_only=True):
    """`in_force`: it is what its key costs now."""

    in_force: bool


class PricePage(Struct, frozen=True):
    data: list[ListedPrice]
    next_cursor: str | None


class PricesController(Controller):
    path = "/prices"
    tags = ("prices",)

    @post(summary="Publish a price: a new version of the book")
    async def create(self, data: JSONBody[PublishPrice], rooms: Injected) -> PublishedPrice:
        draft = draft_of(data)
        async with rooms.write() as write:
            (row,) = await publish_prices(write.connection, [draft], supersede=data.supersede)
            return rooms.done(PublishedPrice(**asdict(answer_of(row)), warnings=_warnings(row, rooms)))

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
        book = rooms.services.catalog.snapshot.books.prices
        current = {row.id for row in book.current(at_us=now_us(), version=book.version)}
        listed = [ListedPrice(**asdict(answer_of(row)), in_force=row.id in current) for row in page]
        return PricePage(listed, next_cursor)

    @get("/drift", summary="Where the book differs from the list prices that are known here")
    async def drift(self, rooms: Injected) -> DriftReport:
        return await rooms.services.price_drift.look()


def _warnings(row: PriceRow, rooms: Rooms) -> list[str]:
    """A price that no configured route asks for prices nothing: its provider or its model may be misspelt."""
    lists = sorted({each.price_list for each in rooms.services.router.providers.values()})
    if row.price_list not in lists:
        known = ", ".join(lists) or "none"
        if any(each.sell_list == row.price_list for each in rooms.services.catalog.snapshot.books.sell.rows):
            return []
        return [
            f"provider: no provider is priced by the list {row.price_list!r} (configured: {known}), and no team buys on it"
        ]
    routes = [route for model in rooms.services.router.models() for route in model.routes]
    models = sorted({route.model for route in routes if route.price_list == row.price_list})
    if row.model not in models:
        return [
            f"model: no route of the list {row.price_list!r} asks for {row.model!r}; its models: {', '.join(models) or 'none'}"
        ]
    return []
