"""Usage rows go in once, whatever the order, the batches or the number of tries; rollups always equal the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing import tables
from billing.database import open_database, reading
from billing.errors import AmountOverflow
from billing.ledger import UsageRecord, record
from billing.money import INT64_MAX, Money
from billing.partitions import ensure_partitions
from billing.rollups import ERROR_STATUSES
from billing.times import DAY_US, QUARTER_US, now_us
from billing.usage import TokenClass, Usage
from tests.billing.helpers import NOON_US, rated_record, request_id

Totals = dict[str, Any]


async def _totals_of_rows(connection: AsyncConnection, team: str) -> Totals:
    """The figures of one team computed from its usage rows and lines alone."""
    rows, lines = tables.usage.c, tables.usage_lines.c
    found = (await connection.execute(select(tables.usage).where(rows.team_id == team))).all()
    parts = (
        await connection.execute(
            select(lines.token_class, func.sum(lines.quantity))
            .select_from(tables.usage_lines.join(tables.usage, lines.usage_id == rows.id))
            .where(rows.team_id == team)
            .group_by(lines.token_class)
        )
    ).all()
    totals: Totals = {
        "requests": len(found),
        "errors": sum(row.status in ERROR_STATUSES for row in found),
        "unpriced": sum(row.unpriced is not None for row in found),
        "estimated": sum(row.estimated for row in found),
        "latency_us": sum(row.latency_us for row in found),
        "reasoning": sum(row.reasoning for row in found),
    }
    totals |= {token_class: int(quantity) for token_class, quantity in parts}
    for name in tables.MONEY_COLUMNS:
        totals[name] = sum(getattr(row, name) or 0 for row in found)
    return totals


async def _totals_of_traffic(connection: AsyncConnection, team: str) -> Totals:
    columns = tables.rollup_traffic.c
    sums = [func.sum(columns[name]).label(name) for name in tables.TRAFFIC_SUMS]
    row = (await connection.execute(select(*sums).where(columns.team_id == team))).one()._mapping
    kept = ("requests", "errors", "unpriced", "estimated", "latency_us", "reasoning", *tables.MONEY_COLUMNS)
    totals = {name: int(row[name] or 0) for name in kept}
    return totals | {name: int(row[name]) for name in tables.TOKEN_COLUMNS if row[name]}


async def _money_of_lines(connection: AsyncConnection, team: str) -> list[tuple[Any, ...]]:
    rows, lines = tables.usage.c, tables.usage_lines.c
    query = (
        select(
            lines.token_class,
            func.coalesce(lines.price_row_id, 0),
            func.count(),
            func.sum(lines.quantity),
            func.sum(lines.list_nano),
            func.sum(lines.settled_nano),
            func.sum(lines.policy_nano),
            func.sum(lines.reference_nano),
        )
        .join_from(tables.usage_lines, tables.usage, lines.usage_id == rows.id)
        .where(rows.team_id == team)
        .group_by(lines.token_class, lines.price_row_id)
    )
    return sorted(_plain(row) for row in await connection.execute(query))


async def _money_of_rollup(connection: AsyncConnection, team: str) -> list[tuple[Any, ...]]:
    columns = tables.rollup_money.c
    query = (
        select(columns.token_class, columns.price_row_id, *(func.sum(columns[name]) for name in tables.MONEY_SUMS))
        .where(columns.team_id == team)
        .group_by(columns.token_class, columns.price_row_id)
    )
    return sorted(_plain(row) for row in await connection.execute(query))


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return (row[0], *(None if value is None else int(value) for value in row[1:]))


async def _assert_rollups_equal_rows(connection: AsyncConnection, team: str) -> Totals:
    rows, traffic = await _totals_of_rows(connection, team), await _totals_of_traffic(connection, team)
    assert rows == traffic
    assert await _money_of_lines(connection, team) == await _money_of_rollup(connection, team)
    return rows


_usage = st.builds(
    Usage,
    input=st.integers(0, 10**7),
    cache_read=st.integers(0, 10**6),
    output=st.integers(0, 10**6),
    audio_input=st.sampled_from([0, 0, 0, 3]),
    reasoning=st.integers(0, 100),
)


@st.composite
def _requests(draw: st.DrawFn) -> list[UsageRecord]:
    return [
        rated_record(
            draw(_usage),
            id_=request_id(NOON_US + draw(st.integers(0, 3 * QUARTER_US))),
            key=draw(st.sampled_from(["key_a", "key_b"])),
            model=draw(st.sampled_from(["deepseek-chat", "other"])),
            status=draw(st.sampled_from(["completed", "failed", "cancelled", "lost"])),
            estimated=draw(st.booleans()),
            latency_us=draw(st.integers(0, 40_000_000)),
        )
        for _ in range(draw(st.integers(1, 12)))
    ]


@st.composite
def _deliveries(draw: st.DrawFn) -> tuple[list[UsageRecord], list[list[UsageRecord]]]:
    """Requests, and batches in which each of them comes at least once: in any order, any size, with repetitions."""
    requests = draw(_requests())
    again = draw(st.lists(st.sampled_from(requests), max_size=10))
    stream = draw(st.permutations(requests + again))
    batches: list[list[UsageRecord]] = [[]]
    for each in stream:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(each)
    return requests, batches


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=_deliveries())
async def test_rule_10_any_order_duplication_and_batching_gives_the_same_totals_and_rows_equal_rollups(
    database: AsyncEngine, case: tuple[list[UsageRecord], list[list[UsageRecord]]]
) -> None:
    requests, batches = case
    once, shuffled = f"team_{uuid4().hex}", f"team_{uuid4().hex}"
    async with database.begin() as connection:
        result = await record(connection, [replace(each, team_id=once, id=request_id(NOON_US)) for each in requests])
        assert (result.inserted, result.duplicates) == (len(requests), 0)
    inserted = 0
    for batch in batches:
        async with database.begin() as connection:
            inserted += (await record(connection, [replace(each, team_id=shuffled) for each in batch])).inserted
    assert inserted == len(requests)
    async with reading(database) as connection:
        assert await _assert_rollups_equal_rows(connection, once) == await _assert_rollups_equal_rows(
            connection, shuffled
        )


async def test_rule_10_both_databases_hold_the_same_figures(sqlite_url: str, postgresql_url: str) -> None:
    requests = [
        rated_record(Usage(input=at * 7919, cache_read=at, output=at * 104_729), id_=request_id(NOON_US + at * 10**8))
        for at in range(1, 60)
    ]
    figures = []
    for url in (sqlite_url, postgresql_url):
        engine = open_database(url)
        async with engine.begin() as connection:
            await record(connection, requests)
        async with reading(engine) as connection:
            figures.append(
                (
                    await _assert_rollups_equal_rows(connection, "team_a"),
                    await _money_of_lines(connection, "team_a"),
                    [
                        tuple(row)
                        for row in await connection.execute(
                            select(tables.rollup_traffic).order_by(*tables.rollup_traffic.primary_key)
                        )
                    ],
                )
            )
        await engine.dispose()
    assert figures[0] == figures[1]


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 70])
@pytest.mark.parametrize("alike", [True, False])
async def test_a_row_is_the_same_in_every_column_alone_or_in_a_batch_of_any_size(
    database: AsyncEngine, rows: int, alike: bool
) -> None:
    """What rows have in common is said once: each of them says it, all the same, and nothing else."""
    now = now_us()
    one_by_one = [
        rated_record(Usage(input=16, output=8), id_=request_id(now))
        if alike
        else replace(
            rated_record(
                Usage(input=at * 7919, cache_read=at % 2, output=at % 3, flaw="clamped" if at % 5 == 0 else None),
                id_=request_id(now),
                key=f"key_{at % 4}",
                status=("completed", "failed")[at % 2],
                estimated=at % 3 == 0,
                tags={"at": str(at)} if at % 2 else None,
                latency_us=at,
            ),
            ttft_us=at if at % 2 else None,
            streamed=at % 2 == 0,
        )
        for at in range(rows)
    ]
    together = [replace(each, id=request_id(now), team_id="team_b") for each in one_by_one]
    for batch in (*([each] for each in one_by_one), together):
        async with database.begin() as connection:
            assert (await record(connection, batch)).inserted == len(batch)
    async with reading(database) as connection:
        for table, key in ((tables.usage, "id"), (tables.usage_lines, "usage_id"), (tables.attempts, "usage_id")):
            columns = [each for each in table.c if each.name not in {key, "team_id", "recorded_at_us", "started_at_us"}]
            written = []
            for each in (*one_by_one, *together):
                found = await connection.execute(select(*columns).where(table.c[key] == each.id))
                written.append([tuple(row) for row in found])
            assert written[:rows] == written[rows:]
            assert all(written) or table is tables.usage_lines


async def test_a_replay_of_everything_changes_nothing(database: AsyncEngine) -> None:
    requests = [rated_record(Usage(input=100, output=at)) for at in range(50)]
    async with database.begin() as connection:
        first = await record(connection, requests)
    async with database.begin() as connection:
        second = await record(connection, requests[::-1])
    assert (first.inserted, first.duplicates) == (50, 0)
    assert first.new_ids == {each.id for each in requests}
    assert (second.inserted, second.duplicates, second.new_ids) == (0, 50, frozenset())
    async with reading(database) as connection:
        assert (await _assert_rollups_equal_rows(connection, "team_a"))["requests"] == 50


async def test_one_request_twice_in_one_batch_is_one_row(database: AsyncEngine) -> None:
    one = rated_record(Usage(output=5))
    async with database.begin() as connection:
        result = await record(connection, [one, one, one])
    assert (result.inserted, result.duplicates) == (1, 2)


async def test_writers_at_once_with_overlapping_batches_count_each_request_once(database: AsyncEngine) -> None:
    requests = [
        rated_record(Usage(input=3, output=at), id_=request_id(NOON_US + at * 10**6), key=f"key_{at % 7}")
        for at in range(120)
    ]

    async def write(batch: list[UsageRecord]) -> int:
        async with database.begin() as connection:
            return (await record(connection, batch)).inserted

    batches = [requests[start : start + 60] for start in range(0, 120, 12)]
    inserted = await asyncio.gather(*(write(batch) for batch in batches))
    assert sum(inserted) == 120
    async with reading(database) as connection:
        assert (await _assert_rollups_equal_rows(connection, "team_a"))["requests"] == 120


async def test_a_failed_transaction_leaves_nothing_behind(database: AsyncEngine) -> None:
    async def write_and_die() -> None:
        async with database.begin() as connection:
            await record(connection, [rated_record(Usage(output=5))])
            raise RuntimeError("the process dies here")

    with pytest.raises(RuntimeError):
        await write_and_die()
    async with reading(database) as connection:
        for table in (tables.usage, tables.usage_lines, tables.attempts, tables.rollup_money, tables.rollup_traffic):
            assert await connection.scalar(select(func.count()).select_from(table)) == 0


async def test_a_sum_beyond_64_bits_is_an_error_and_not_a_wrap(database: AsyncEngine) -> None:
    def huge() -> UsageRecord:
        one = rated_record(Usage(output=1))
        (line,) = one.rated.lines
        line = msgspec.structs.replace(line, list_nano=INT64_MAX - 5)
        return replace(one, rated=msgspec.structs.replace(one.rated, lines=(line,), list=Money("USD", INT64_MAX - 5)))

    async with database.begin() as connection:
        await record(connection, [huge()])
    with pytest.raises(AmountOverflow, match="64 bits"):
        async with database.begin() as connection:
            await record(connection, [huge()])
    async with reading(database) as connection:
        assert await connection.scalar(select(func.count()).select_from(tables.usage)) == 1


async def test_rows_once_written_refuse_to_be_changed(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await record(connection, [rated_record(Usage(output=1))])
    for statement in (
        "UPDATE usage SET settled_nano = 0",
        "UPDATE usage_lines SET quantity = 0",
        "UPDATE attempts SET cost_nano = 0",
    ):
        async with database.connect() as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                await connection.execute(text(statement))


async def test_rule_34_a_partitioned_key_does_not_admit_one_id_twice(postgresql_url: str) -> None:
    engine = open_database(postgresql_url)
    far_us = now_us() + 500 * DAY_US
    one = rated_record(Usage(output=1), id_=request_id(far_us))
    async with engine.begin() as connection:
        assert (await record(connection, [one])).inserted == 1
    async with engine.begin() as connection:
        await ensure_partitions(connection, far_us)
        assert (await record(connection, [one])).inserted == 0
    await engine.dispose()


def test_every_class_has_its_column_in_the_traffic_rollup() -> None:
    assert set(TokenClass) <= set(tables.rollup_traffic.c.keys())
