"""Sell prices: what a team is sold at, where that is not the provider's price. Append-only rows, recorded and listed."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from billing.catalog_lists import list_sell
from billing.recording import record_sell
from billing.records import SellView
from billing.times import now_us
from billing.views import sell_view
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.services import Injected
from gateway.admin.texts import Decimal, Moment, Text, moment_us


class PostSell(Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of `sell_list` (another price list of the book) and `multiplier` (of the provider's price, six decimals).

    For everything, or for one price list (`provider`), one `model`, or one model of one list: the most specific row applies.
    Without `effective_from` it holds from now on; a multiplier of 1 is the provider's price again.
    """

    team_id: Text
    provider: Text | None = None
    model: Text | None = None
    sell_list: Text | None = None
    multiplier: Decimal | None = None
    effective_from: Moment | None = None


class SellPage(Struct, frozen=True):
    data: list[SellView]
    next_cursor: str | None


class SellPricesController(Controller):
    path = "/sell-prices"
    tags = ("prices",)

    @post(summary="Record what a team is sold at")
    async def create(self, data: JSONBody[PostSell], rooms: Injected) -> SellView:
        effective_from_us = moment_us(data.effective_from, "effective_from")
        async with rooms.write() as write:
            row = await record_sell(
                write.connection,
                team_id=data.team_id,
                price_list=data.provider,
                model=data.model,
                sell_list=data.sell_list,
                multiplier=data.multiplier,
                effective_from_us=now_us() if effective_from_us is None else effective_from_us,
            )
            return rooms.done(sell_view(row))

    @get(summary="List sell prices in the order they were recorded")
    async def index(
        self,
        rooms: Injected,
        team_id: Annotated[str | None, QueryParameter(max_length=300)] = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> SellPage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            rows = await list_sell(connection, team_id=team_id, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return SellPage([sell_view(row) for row in page], next_cursor)
