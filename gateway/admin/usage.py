"""Usage: sums per interval and group out of the rollups, and each request with everything its cost was computed from."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Controller, get
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from billing.errors import InvalidQuery
from billing.ledger import UsageView, list_usage, usage_buckets, usage_row
from billing.money import Money
from billing.reads import MAX_PAGE, UsageFilters, parse_request_id
from billing.records import MoneyView
from billing.reports import MAX_BUCKETS, UsageBucket
from billing.times import DAY_US, QUARTER_US, now_us, quarter_of
from billing.views import saving_percent
from gateway.admin.failures import invalid, missing
from gateway.admin.paging import Cursor
from gateway.admin.services import Injected, Rooms
from gateway.admin.texts import moment_us

DEFAULT_RANGE_US = 30 * DAY_US

Id = Annotated[str | None, QueryParameter(max_length=200)]
Start = Annotated[
    str | None,
    QueryParameter(max_length=40, description="RFC 3339, inside the range; sums take the quarter-hour around it."),
]
End = Annotated[
    str | None,
    QueryParameter(max_length=40, description="RFC 3339, outside the range; sums take it up to the quarter-hour."),
]
Interval = Annotated[str, QueryParameter(max_length=20, description="hour, day or month")]
TimeZone = Annotated[str, QueryParameter(max_length=64, description="IANA name; its days may have 23 or 25 hours.")]
GroupBy = Annotated[
    str | None,
    QueryParameter(
        max_length=200, description="Comma-separated: team, key, model, provider, provider_model, tag:NAME."
    ),
]


class BucketView(UsageBucket, frozen=True):
    """`saving_percent`: 1 - settled / policy over the bucket, four decimals; null unless both stand in one currency."""

    saving_percent: str | None


class BucketPage(Struct, frozen=True):
    data: list[BucketView]
    next_cursor: str | None
    as_of: str


class RequestPage(Struct, frozen=True):
    data: list[UsageView]
    next_cursor: str | None


class UsageController(Controller):
    path = "/usage"
    tags = ("usage",)

    @get(summary="Sums per hour, day or month of a time zone, by team, key, model or provider")
    async def buckets(
        self,
        rooms: Injected,
        start: Start = None,
        end: End = None,
        interval: Interval = "day",
        timezone: TimeZone = "UTC",
        group_by: GroupBy = None,
        team_id: Id = None,
        key_id: Id = None,
        model: Id = None,
        provider: Id = None,
        cursor: Cursor = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_BUCKETS)] = 200,
    ) -> BucketPage:
        start_us, end_us = usage_range(start, end)
        async with rooms.read() as connection:
            page = await usage_buckets(
                connection,
                start_us,
                end_us,
                interval=interval,
                timezone=timezone,
                group_by=[name.strip() for name in group_by.split(",")] if group_by else (),
                filters=UsageFilters(team_id=team_id, key_id=key_id, model=model, provider=provider),
                cursor=cursor,
                limit=limit,
            )
        hide = rooms.principal.team_id is not None
        return BucketPage([_bucket(bucket, hide=hide) for bucket in page.data], page.next_cursor, page.as_of)

    @get("/requests", summary="Requests, newest first")
    async def requests(
        self,
        rooms: Injected,
        start: Start = None,
        end: End = None,
        team_id: Id = None,
        key_id: Id = None,
        model: Id = None,
        provider: Id = None,
        status: Id = None,
        unpriced: FromQuery[bool | None] = None,
        negative_margin: FromQuery[bool | None] = None,
        cursor: Cursor = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 50,
    ) -> RequestPage:
        if negative_margin is not None and rooms.principal.team_id is not None:
            raise invalid("negative_margin: margins are not shown to a team", "negative_margin")
        filters = UsageFilters(
            team_id,
            key_id,
            model,
            provider,
            status,
            unpriced,
            negative_margin,
            moment_us(start, "start"),
            moment_us(end, "end"),
        )
        async with rooms.read() as connection:
            page = await list_usage(connection, filters, cursor, limit)
        return RequestPage([_shown(row, rooms) for row in page.data], page.next_cursor)

    @get("/requests/{request_id:str}", summary="One request: its lines, price rows, rates, terms and attempts")
    async def one(self, request_id: FromPath[str], rooms: Injected) -> UsageView:
        try:
            identifier = parse_request_id(request_id, "id")
        except InvalidQuery as error:
            raise missing("request", request_id[:100]) from error
        async with rooms.read() as connection:
            row = await usage_row(connection, identifier)
        if row is None:
            raise missing("request", identifier)
        return _shown(row, rooms)


def usage_range(start: str | None, end: str | None) -> tuple[int, int]:
    """The asked range widened to whole quarter-hours, which is what rollups hold; by default the last 30 days."""
    end_us = moment_us(end, "end")
    end_us = -quarter_of(-end_us) if end_us is not None else quarter_of(now_us()) + QUARTER_US
    start_us = moment_us(start, "start")
    return quarter_of(end_us - DEFAULT_RANGE_US if start_us is None else start_us), end_us


def _shown(row: UsageView, rooms: Rooms) -> UsageView:
    """The row; to a team without what it cost us, on the answer and on every attempt (engine time is our cost in other words)."""
    if rooms.principal.team_id is None:
        return row
    attempts = [
        msgspec.structs.replace(each, cost=None, price_rows=[], cost_per_hour=None, tokens=_without_time(each.tokens))
        for each in row.attempts
    ]
    return msgspec.structs.replace(row, cost=None, margin=None, negative_margin=False, attempts=attempts)


def _without_time(tokens: dict[str, int] | None) -> dict[str, int] | None:
    return None if tokens is None else {name: count for name, count in tokens.items() if name != "compute_us"}


def _bucket(bucket: UsageBucket, *, hide: bool) -> BucketView:
    """`hide`: without our cost and margin."""
    fields: dict[str, Any] = msgspec.structs.asdict(bucket)
    if hide:
        fields |= {"cost": [], "margin": [], "margin_partial": False, "negative_margin": 0}
    return BucketView(**fields, saving_percent=_saving(bucket.settled, bucket.policy))


def _saving(settled: list[MoneyView], policy: list[MoneyView]) -> str | None:
    if len(settled) != 1 or len(policy) != 1:
        return None
    (one,), (other,) = settled, policy
    if one.currency != other.currency:
        return None
    return saving_percent(Money.parse(one.amount, one.currency).nano, Money.parse(other.amount, other.currency).nano)
