"""Exchange rates and settlement terms: append-only rows, recorded and listed."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Controller, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.catalog_lists import list_rates, list_terms
from billing.rate_feed import FeedRate
from billing.recording import record_rate, record_terms
from billing.records import RateView, TermsView
from billing.times import format_time, now_us
from billing.views import rate_view, terms_view
from gateway.admin.failures import conflict, invalid, missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.services import Injected
from gateway.admin.texts import Currency, Decimal, Moment, Note, Text, moment_us
from gateway.rates.keeper import RatesRefused, read_feed, take_feed
from gateway.settings import RateFeedSettings

Filter = Annotated[str | None, QueryParameter(max_length=300)]


class PostRate(Struct, frozen=True, forbid_unknown_fields=True):
    """One `base` is `rate` `quote`, from `effective_from` (default: now) until the next row of the pair and kind."""

    base: Currency
    quote: Currency
    kind: Literal["reference", "policy", "contract"]
    rate: Decimal
    source: Note = "manual"
    effective_from: Moment | None = None


class PostTerms(Struct, frozen=True, forbid_unknown_fields=True):
    """How amounts in `base` settle in `quote`, for exactly one of a team and a provider."""

    policy: Literal["fixed", "market_plus_bps"]
    base: Currency
    quote: Currency
    team_id: Text | None = None
    provider: Text | None = None
    rate: Decimal | None = None
    bps: int | None = None
    effective_from: Moment | None = None


class RatePage(Struct, frozen=True):
    data: list[RateView]
    next_cursor: str | None


class FetchRates(Struct, frozen=True, forbid_unknown_fields=True):
    """`feed`: only this one of the configured feeds."""

    feed: Text | None = None


class FetchedFeed(Struct, frozen=True):
    """`refused` says why nothing was taken; null: all of its file stands in the books."""

    feed: str
    added: int
    known: int
    newest: str | None
    refused: str | None


class Fetched(Struct, frozen=True):
    data: list[FetchedFeed]


class TermsPage(Struct, frozen=True):
    data: list[TermsView]
    next_cursor: str | None


class RatesController(Controller):
    path = "/rates"
    tags = ("rates",)

    @post(summary="Record a rate")
    async def create(self, data: JSONBody[PostRate], rooms: Injected) -> RateView:
        effective_from_us = moment_us(data.effective_from, "effective_from")
        async with rooms.write() as write:
            row = await record_rate(
                write.connection,
                base=data.base,
                quote=data.quote,
                kind=data.kind,
                rate=data.rate,
                source=data.source,
                effective_from_us=now_us() if effective_from_us is None else effective_from_us,
            )
            return rooms.done(rate_view(row))

    @post("/fetch", status_code=200, summary="Fetch the configured feeds now: a file is taken whole, or nothing of it")
    async def fetch(self, data: JSONBody[FetchRates], rooms: Injected) -> Fetched:
        feeds = rooms.services.settings.rates.feeds
        if data.feed is not None:
            feeds = [each for each in feeds if each.name == data.feed]
            if not feeds:
                raise missing("feed", data.feed)
        if not feeds:
            raise conflict("feed: none is configured; name some under rates.feeds", "feed")
        said = [(each, await _read(each)) for each in feeds]
        async with rooms.write() as write:
            return rooms.done(Fetched([await _taken(write.connection, *each) for each in said]))

    @get(summary="List rates in the order they were recorded")
    async def index(
        self,
        rooms: Injected,
        kind: Filter = None,
        base: Filter = None,
        quote: Filter = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> RatePage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            rows = await list_rates(connection, kind=kind, base=base, quote=quote, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return RatePage([rate_view(row) for row in page], next_cursor)


async def _read(feed: RateFeedSettings) -> list[FeedRate] | RatesRefused:
    try:
        return await read_feed(feed)
    except RatesRefused as refused:
        return refused


async def _taken(
    connection: AsyncConnection, feed: RateFeedSettings, rates: list[FeedRate] | RatesRefused
) -> FetchedFeed:
    try:
        if isinstance(rates, RatesRefused):
            raise rates
        found = await take_feed(connection, feed, rates)
    except RatesRefused as refused:
        return FetchedFeed(feed.name, 0, 0, None, str(refused))
    return FetchedFeed(feed.name, found.added, found.known, format_time(found.newest_us), None)


class TermsController(Controller):
    path = "/terms"
    tags = ("terms",)

    @post(summary="Record settlement terms")
    async def create(self, data: JSONBody[PostTerms], rooms: Injected) -> TermsView:
        if (data.team_id is None) == (data.provider is None):
            raise invalid("team_id: give exactly one of team_id and provider", "team_id")
        effective_from_us = moment_us(data.effective_from, "effective_from")
        async with rooms.write() as write:
            row = await record_terms(
                write.connection,
                base=data.base,
                quote=data.quote,
                policy=data.policy,
                team_id=data.team_id,
                provider=data.provider,
                rate=data.rate,
                bps=data.bps,
                effective_from_us=now_us() if effective_from_us is None else effective_from_us,
            )
            return rooms.done(terms_view(row))

    @get(summary="List settlement terms in the order they were recorded")
    async def index(
        self,
        rooms: Injected,
        team_id: Filter = None,
        provider: Filter = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> TermsPage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            rows = await list_terms(connection, team_id=team_id, provider=provider, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return TermsPage([terms_view(row) for row in page], next_cursor)
