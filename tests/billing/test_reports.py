"""Sums per interval of a time zone, grouped, one entry per currency, a page at a time."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database, reading
from billing.errors import BillingError, InvalidQuery
from billing.ledger import record, usage_buckets
from billing.reads import UsageFilters
from billing.reports import UsageBucket
from billing.times import DAY_US, HOUR_US
from billing.usage import Usage
from tests.billing.helpers import at, rated_record, request_id

START = at("2026-11-29T00:00:00Z")
END = at("2026-12-01T00:00:00Z")


async def _record(database: AsyncEngine) -> None:
    requests = [
        rated_record(Usage(input=9, output=5), id_=request_id(at("2026-11-29T15:59:59Z")), team="team_1"),
        rated_record(Usage(output=1_000_000), id_=request_id(at("2026-11-29T16:00:00Z")), team="team_1", key="key_2"),
        rated_record(Usage(output=7, audio_input=1), id_=request_id(at("2026-11-30T01:00:00Z")), team="team_1"),
        rated_record(
            Usage(output=1_000_000),
            id_=request_id(at("2026-11-30T02:00:00Z")),
            team="team_2",
            currency="USD",
            status="failed",
        ),
    ]
    async with database.begin() as connection:
        await record(connection, requests)


def _plain(buckets: list[UsageBucket]) -> list[dict[str, object]]:
    return [msgspec.to_builtins(bucket) for bucket in buckets]


async def test_days_are_those_of_the_time_zone(database: AsyncEngine) -> None:
    await _record(database)
    async with reading(database) as connection:
        shanghai = await usage_buckets(connection, START, END, "day", "Asia/Shanghai")
        utc = await usage_buckets(connection, START, END, "day", "UTC")
    assert [(each.start, each.end, each.requests) for each in shanghai.data] == [
        ("2026-11-29T00:00:00Z", "2026-11-29T16:00:00Z", 1),
        ("2026-11-29T16:00:00Z", "2026-11-30T16:00:00Z", 3),
    ]
    assert [each.requests for each in utc.data] == [2, 2]
    assert shanghai.next_cursor is None


async def test_rule_07_each_currency_is_summed_by_itself(database: AsyncEngine) -> None:
    await _record(database)
    async with reading(database) as connection:
        page = await usage_buckets(connection, at("2026-11-30T00:00:00Z"), END, "month", "UTC")
    (bucket,) = _plain(page.data)
    assert bucket["tokens"] == {"output": 1_000_007, "audio_input": 1}
    assert (bucket["requests"], bucket["errors"], bucket["unpriced"]) == (2, 1, 1)
    assert bucket["list"] == [{"amount": "0.42", "currency": "USD"}]
    assert bucket["settled"] == [{"amount": "0", "currency": "CNY"}, {"amount": "0.42", "currency": "USD"}]
    assert bucket["cost"] == [{"amount": "0.42", "currency": "USD"}]


async def test_groups_are_in_order_and_pages_fit_together(database: AsyncEngine) -> None:
    await _record(database)
    found, cursor, pages = [], None, 0
    async with reading(database) as connection:
        while pages == 0 or cursor is not None:
            page = await usage_buckets(
                connection, START, END, "day", "UTC", ["team", "key", "model", "provider"], cursor=cursor, limit=1
            )
            found += page.data
            cursor, pages = page.next_cursor, pages + 1
        whole = await usage_buckets(connection, START, END, "day", "UTC", ["team", "key", "model", "provider"])
    assert found == whole.data
    assert [tuple(each.group.values())[:2] for each in found] == [
        ("team_1", "key_2"),
        ("team_1", "key_a"),
        ("team_1", "key_a"),
        ("team_2", "key_a"),
    ]
    assert set(found[0].group) == {"team", "key", "model", "provider"}


async def test_filters_keep_other_teams_out(database: AsyncEngine) -> None:
    await _record(database)
    async with reading(database) as connection:
        page = await usage_buckets(connection, START, END, "day", "UTC", ["team"], UsageFilters(team_id="team_2"))
        nothing = await usage_buckets(connection, START, END, "day", "UTC", (), UsageFilters(team_id="' OR ''='"))
    assert [each.group for each in page.data] == [{"team": "team_2"}]
    assert nothing.data == []


async def test_hours_of_a_month_come_in_pages(database: AsyncEngine) -> None:
    start = at("2026-10-01T00:00:00Z")
    requests = [rated_record(Usage(output=hour), id_=request_id(start + hour * HOUR_US)) for hour in range(0, 720, 2)]
    async with database.begin() as connection:
        await record(connection, requests)
    seen: list[UsageBucket] = []
    cursor = None
    async with reading(database) as connection:
        while True:
            page = await usage_buckets(connection, start, start + 30 * DAY_US, "hour", "UTC", cursor=cursor, limit=100)
            seen += page.data
            cursor = page.next_cursor
            if cursor is None:
                break
    assert [each.tokens.get("output", 0) for each in seen] == list(range(0, 720, 2))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"interval": "week"}, "interval"),
        ({"group_by": ["team; DROP TABLE usage"]}, "group_by"),
        ({"group_by": ["team", "team"]}, "group_by"),
        ({"limit": 0}, "limit"),
        ({"end_us": START}, "end"),
        ({"end_us": START + 500 * DAY_US}, "end"),
        ({"start_us": START + 1}, "start"),
        ({"timezone": "Nowhere"}, "timezone"),
        ({"cursor": "%%%"}, "cursor"),
        ({"cursor": "WzEsInRlYW0iXQ"}, "cursor"),
    ],
)
async def test_rule_29_a_question_that_cannot_be_answered_names_its_field(
    sqlite_url: str, change: dict[str, object], field: str
) -> None:
    engine = open_database(sqlite_url)
    asked = {"start_us": START, "end_us": END, "interval": "day", "timezone": "UTC"} | change
    async with reading(engine) as connection:
        with pytest.raises(BillingError) as caught:
            await usage_buckets(connection, **asked)  # type: ignore[arg-type]
    assert isinstance(caught.value, InvalidQuery) or field == "timezone"
    assert caught.value.field == field
    await engine.dispose()
