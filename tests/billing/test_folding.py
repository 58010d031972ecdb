"""Coarse rollups: whatever was folded when, every question is answered as the quarter-hours alone would answer it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.coarse import COARSE, FINE, KEYS, ROUTES, coarse_for, cover
from billing.corrections import reverse
from billing.database import reading
from billing.drift import find_drift, repair_rollups
from billing.errors import BillingError
from billing.exchange import RateBook, RateKind
from billing.folding import FOLD_AFTER_US, fold, folded_until, refold
from billing.ledger import record, spent, usage_buckets
from billing.reads import UsageFilters
from billing.records import UsageRecord
from billing.times import DAY_US, HOUR_US, QUARTER_US, format_time
from billing.usage import Usage
from tests.billing.helpers import at, rate_row, rated_record, request_id

START = at("2026-10-20T00:00:00Z")
END = START + 40 * DAY_US
ZONES = ("UTC", "Asia/Shanghai", "Asia/Kathmandu", "America/New_York")
QUESTIONS: tuple[tuple[str, tuple[str, ...], UsageFilters], ...] = (
    ("day", (), UsageFilters()),
    ("month", ("team",), UsageFilters()),
    ("month", ("key",), UsageFilters()),
    ("month", ("team", "key"), UsageFilters(team_id="team_a")),
    ("day", ("model", "provider"), UsageFilters(team_id="team_b")),
    ("month", ("key", "model"), UsageFilters()),
    ("day", (), UsageFilters(key_id="key_1")),
)
SPENDERS = (("team", "team_a", "CNY"), ("key", "key_1", "USD"), ("all", None, "USD"), ("all", None, "CNY"))
RATES = RateBook(
    rate_row(day, "USD/CNY", RateKind.REFERENCE, f"7.0{day}", format_time(START + day * DAY_US)) for day in range(41)
)


def traffic(chance: random.Random, count: int) -> list[UsageRecord]:
    """Requests of forty days, many of them at the edges of days and hours."""
    found = []
    for _ in range(count):
        edge = START + chance.randrange(40 * 24) * HOUR_US + chance.choice((0, 30, 45)) * 60_000_000
        moment = edge + chance.choice((0, -1_000, 1_000, chance.randrange(HOUR_US)))
        team = chance.choice(("team_a", "team_b"))
        found.append(
            rated_record(
                Usage(input=chance.randrange(1, 9000), output=chance.randrange(900)),
                id_=request_id(min(max(moment, START), END - 1_000)),
                team=team,
                key=f"key_{chance.randrange(3)}",
                model=chance.choice(("deepseek-chat", "other")),
                currency="CNY" if team == "team_a" else "USD",
                status=chance.choice(("completed", "failed")),
            )
        )
    return found


async def fold_all(connection: AsyncConnection, until_us: int) -> None:
    while await fold(connection, until_us + FOLD_AFTER_US):
        pass


async def answers(connection: AsyncConnection) -> list[object]:
    found: list[object] = []
    for zone in ZONES:
        for interval, groups, only in QUESTIONS:
            page = await usage_buckets(connection, START, END, interval, zone, groups, only, limit=1000)
            found.append(page.data)
    for scope, scope_id, currency in SPENDERS:
        for start_us, end_us in ((START + 5 * QUARTER_US, None), (START + 3 * DAY_US + HOUR_US, END - 7 * QUARTER_US)):
            found.append(await spent(connection, scope, scope_id, currency, start_us, end_us, RATES))
    return found


async def fine_answers(connection: AsyncConnection) -> list[object]:
    """The same questions to the quarter-hours alone: for the time of asking, nothing is folded."""
    async with connection.begin_nested() as nested:
        await connection.execute(text("UPDATE rollup_mark SET until_us = 0"))
        found = await answers(connection)
        await nested.rollback()
    return found


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_is_folded_when_every_answer_is_that_of_the_quarter_hours(
    database: AsyncEngine, seed: int
) -> None:
    chance = random.Random(seed)
    rows = traffic(chance, 120)
    async with database.begin() as connection:
        for start in range(0, len(rows), 20):
            await record(connection, rows[start : start + 20])
            await fold_all(connection, START + chance.randrange(40 * 96) * QUARTER_US)
            await record(connection, rows[: start + 20])  # a replay adds nothing anywhere
        await reverse(connection, rows[0].id, request_id(START + HOUR_US), reason="a test", actor="tests")
        assert await find_drift(connection, START, END) == []
        assert await answers(connection) == await fine_answers(connection)
        await fold_all(connection, END + 32 * DAY_US)
        assert await find_drift(connection, START, END) == []
        assert await answers(connection) == await fine_answers(connection)


async def test_a_month_is_read_from_long_spans(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await record(connection, traffic(random.Random(1), 60))
        await fold_all(connection, END)
        before = await answers(connection)
        await connection.execute(text(f"DELETE FROM rollup_traffic WHERE bucket_us < {END - DAY_US}"))
        page = await usage_buckets(connection, START, END, "month", "Asia/Shanghai", ("key",), limit=1000)
        assert page.data == before[len(QUESTIONS) + 2]


async def test_pages_over_folded_spans_fit_together(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await record(connection, traffic(random.Random(4), 40))
        await fold_all(connection, START + 30 * DAY_US)
        whole = await usage_buckets(connection, START, END, "day", "Asia/Shanghai", ("key",), limit=1000)
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await usage_buckets(connection, START, END, "day", "Asia/Shanghai", ("key",), cursor=cursor, limit=7)
            found += page.data
            cursor, pages = page.next_cursor, pages + 1
    assert found == whole.data
    assert pages > 3


@pytest.mark.parametrize(
    "harm", ["DELETE FROM {}", "UPDATE {} SET settled_nano = settled_nano + 1 WHERE span_us > 3600000000"]
)
@pytest.mark.parametrize("table", [coarse.table.name for coarse in COARSE])
async def test_a_coarse_rollup_that_drifted_is_found_and_made_again(
    database: AsyncEngine, table: str, harm: str
) -> None:
    async with database.begin() as connection:
        await record(connection, traffic(random.Random(2), 30))
        await fold_all(connection, END)
        before = sorted(map(str, await connection.execute(text(f"SELECT * FROM {table}"))))
        await connection.execute(text(harm.format(table)))
        drift = await find_drift(connection, START, END)
        assert {each.what for each in drift} == {table}
        for bucket_us in sorted({each.bucket_us for each in drift if each.bucket_us is not None}):
            await refold(connection, bucket_us)
        assert sorted(map(str, await connection.execute(text(f"SELECT * FROM {table}")))) == before


async def test_a_quarter_hour_that_is_made_again_takes_the_spans_over_it_along(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        rows = traffic(random.Random(3), 30)
        await record(connection, rows)
        await connection.execute(text("UPDATE rollup_traffic SET requests = requests + 1"))
        await fold_all(connection, END)
        for bucket_us in {each.bucket_us for each in await find_drift(connection, START, END)}:
            assert bucket_us is not None
            await repair_rollups(connection, bucket_us)
        assert await find_drift(connection, START, END) == []
        page = await usage_buckets(connection, START, END, "month", "UTC")
        assert sum(each.requests for each in page.data) == len(rows)


@pytest.mark.parametrize("first", ["recorder", "fold"])
async def test_a_row_that_is_written_while_its_hour_is_folded_counts_once(database: AsyncEngine, first: str) -> None:
    async def write() -> None:
        async with database.begin() as connection:
            await record(connection, [rated_record(Usage(output=7), id_=request_id(START))])

    async def fold_it() -> None:
        async with database.begin() as connection:
            await fold_all(connection, START + DAY_US)

    async with database.begin() as connection:
        if first == "recorder":
            await record(connection, [rated_record(Usage(output=5), id_=request_id(START))])
        else:
            await fold_all(connection, START + DAY_US)
        other = asyncio.create_task(fold_it() if first == "recorder" else write())
        if connection.dialect.name == "postgresql":
            await _until_one_waits(connection)
    await other
    async with reading(database) as connection:
        assert await folded_until(connection) == START + DAY_US
        assert await find_drift(connection, START, START + DAY_US) == []
        (bucket,) = (await usage_buckets(connection, START, START + DAY_US)).data
        assert bucket.requests == 1


async def _until_one_waits(connection: AsyncConnection) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        if await connection.scalar(waiting):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for the mark")


async def test_folding_jumps_over_time_without_traffic_and_stops_before_the_present(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await record(connection, [rated_record(Usage(output=5), id_=request_id(START + 30 * DAY_US))])
        assert await fold(connection, END)  # up to the end of its hour
        assert await folded_until(connection) == START + 30 * DAY_US + HOUR_US
        assert not await fold(connection, END)
        assert await folded_until(connection) == END - QUARTER_US
        assert not await fold(connection, END)
        await connection.execute(text("DELETE FROM rollup_mark"))
        with pytest.raises(BillingError, match="metergate db upgrade"):
            await fold(connection, END)


quarters = st.integers(0, 400 * 96).map(lambda count: count * QUARTER_US)


@given(quarters, quarters, quarters, st.sampled_from([(), *(coarse.spans for coarse in COARSE)]))
def test_a_cover_is_the_range_in_whole_folded_spans(start: int, end: int, mark: int, spans: Sequence[int]) -> None:
    pieces = cover(spans, mark, start, end)
    edges = [start, *(each.end_us for each in pieces)]
    assert [each.start_us for each in pieces] == edges[:-1]
    assert edges[-1] == max(start, end)
    for each in pieces:
        assert each.start_us < each.end_us
        if each.span_us != FINE:
            assert each.start_us % each.span_us == each.end_us % each.span_us == 0
            assert each.end_us <= mark
    assert len(pieces) <= 2 * len(spans) + 1


def test_the_key_is_left_out_where_nobody_asks_for_it() -> None:
    assert coarse_for(()) is coarse_for(("team_id",)) is coarse_for(("model", "team_id")) is ROUTES
    assert coarse_for(("key_id",)) is coarse_for(("team_id", "key_id")) is KEYS
    assert coarse_for(("key_id", "model")) is None
