"""Questions to the past and to the engine: what a range would have cost otherwise, and whether an engine of one's own pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from litestar import Controller, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from billing.break_even import BreakEven, break_even, hourly_price
from billing.checks import parse_field
from billing.currencies import check_currency
from billing.differences import Difference
from billing.money import INT64_MAX, NANO, Money
from billing.price_drafts import MAX_ROWS, get_draft
from billing.publishing import PriceDraft
from billing.times import DAY_US, QUARTER_US, format_time, now_us, parse_time, quarter_of
from billing.what_if import Alternative, OtherRoute, OtherTerms, what_if
from gateway.admin.failures import invalid
from gateway.admin.price_bodies import PostPrice, draft_of
from gateway.admin.rerating import price_lists
from gateway.admin.services import Injected, Rooms
from gateway.admin.texts import Currency, Decimal, Moment, Text, moment_us


class WhatIfTerms(Struct, frozen=True, forbid_unknown_fields=True):
    """As if every team that settles in `quote` had these terms."""

    policy: Literal["fixed", "market_plus_bps"]
    base: Currency
    quote: Currency
    rate: Decimal | None = None
    bps: int | None = None


class WhatIfRoute(Struct, frozen=True, forbid_unknown_fields=True):
    """As if this provider's model had answered."""

    provider: Text
    model: Text


class AskWhatIf(Struct, frozen=True, forbid_unknown_fields=True):
    """A range, and what would be different in it. `prices` or a draft's rows hold for the whole range, whenever they start;
    `priced_at` takes all prices as they are in force at that moment, `version` as that version of the book has them."""

    start: Moment
    end: Moment
    team_id: Text | None = None
    model: Text | None = None
    version: Annotated[int, Meta(ge=0, le=INT64_MAX)] | None = None
    priced_at: Moment | None = None
    prices: Annotated[list[PostPrice], Meta(max_length=MAX_ROWS)] = []
    draft_id: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    terms: WhatIfTerms | None = None
    route: WhatIfRoute | None = None


class WhatIfAnswer(Struct, frozen=True):
    start: str
    end: str
    data: list[Difference]


class WhatIfController(Controller):
    path = "/what-if"
    tags = ("reports",)

    @post(
        summary="Rate a past range again under another book, other terms or another route; nothing is written",
        status_code=200,
    )
    async def ask(self, data: JSONBody[AskWhatIf], rooms: Injected) -> WhatIfAnswer:
        start_us, end_us = parse_time(data.start, "start"), parse_time(data.end, "end")
        prices = [draft_of(each, at=f"prices[{position}].") for position, each in enumerate(data.prices)]
        async with rooms.read() as connection:
            if data.draft_id is not None:
                prices += (await get_draft(connection, data.draft_id)).rows
            alternative = _alternative(data, tuple(prices), price_lists(rooms))
            found = await what_if(connection, alternative, start_us, end_us, team_id=data.team_id, model=data.model)
        return WhatIfAnswer(format_time(start_us), format_time(end_us), found)


class BreakEvenController(Controller):
    path = "/reports/break-even"
    tags = ("reports",)

    @get(summary="What an engine paid by the hour costs per million tokens, beside every price in the book")
    async def report(
        self,
        rooms: Injected,
        provider: Annotated[str, QueryParameter(min_length=1, max_length=300)],
        start: Annotated[str | None, QueryParameter(max_length=40)] = None,
        end: Annotated[str | None, QueryParameter(max_length=40)] = None,
        cost_per_hour: Annotated[
            str | None, QueryParameter(max_length=60, description="By default the setting, or the price list's price.")
        ] = None,
        currency: Annotated[str | None, QueryParameter(max_length=3)] = None,
    ) -> BreakEven:
        end_us = moment_us(end, "end")
        end_us = quarter_of(now_us()) + QUARTER_US if end_us is None else -quarter_of(-end_us)
        start_us = moment_us(start, "start")
        start_us = end_us - 7 * DAY_US if start_us is None else quarter_of(start_us)
        async with rooms.read() as connection:
            return await break_even(
                connection,
                rooms.services.catalog.snapshot.books,
                provider=provider,
                cost_per_hour=_cost_per_hour(rooms, provider, cost_per_hour, currency),
                start_us=start_us,
                end_us=end_us,
                at_us=now_us(),
                own_list=price_lists(rooms)(provider),
            )


def _alternative(data: AskWhatIf, prices: tuple[PriceDraft, ...], price_list_of: Callable[[str], str]) -> Alternative:
    terms, route = data.terms, data.route
    return Alternative(
        version=data.version,
        priced_at_us=moment_us(data.priced_at, "priced_at"),
        prices=prices,
        terms=None if terms is None else OtherTerms(terms.policy, terms.base, terms.quote, terms.rate, terms.bps),
        route=None if route is None else OtherRoute(route.provider, price_list_of(route.provider), route.model),
    )


def _cost_per_hour(rooms: Rooms, provider: str, amount: str | None, currency: str | None) -> Money:
    """What is asked for, else the provider's setting, else its price list's price per hour."""
    if (amount is None) != (currency is None):
        raise invalid("currency: cost_per_hour and currency go together", "currency")
    if amount is not None and currency is not None:
        return Money(check_currency(currency, "currency"), parse_field(amount, NANO, "cost_per_hour"))
    known = rooms.services.router.providers.get(provider)
    if known is not None and known.cost_per_hour is not None:
        return known.cost_per_hour
    return hourly_price(rooms.services.catalog.snapshot.books, price_lists(rooms)(provider), now_us())
