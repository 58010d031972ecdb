"""A wrong row is never touched: a reversal takes it back to the last nano and a new row says what was true."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from billing import tables
from billing.corrections import OUTCOME_TURNED_UP, THE_RECORDER, correct, lost_among, reverse
from billing.database import reading
from billing.errors import Conflict, NotFound
from billing.ledger import record, spent, usage_row
from billing.money import Money
from billing.usage import Usage
from tests.billing.helpers import NOON_US, rated_record, request_id

LATER_US = NOON_US + 3 * 86_400_000_000


async def test_a_true_outcome_replaces_a_lost_one_by_a_linked_reversal_and_a_new_row(database: AsyncEngine) -> None:
    lost = rated_record(Usage(input=1_000_000, output=4096), status="lost", estimated=True)
    truth = rated_record(Usage(input=1_000_000, output=1_000_000), id_=lost.id)
    ids = (request_id(LATER_US), request_id(LATER_US))
    async with database.begin() as connection:
        await record(connection, [lost, rated_record(Usage(output=1))])
        before = await usage_row(connection, lost.id)
        assert await lost_among(connection, [lost.id, request_id(NOON_US)]) == [lost.id]
        assert await correct(connection, truth, ids) is True
    async with database.begin() as connection:
        assert await correct(connection, truth, (request_id(LATER_US), request_id(LATER_US))) is False
        assert await lost_among(connection, [lost.id]) == []
    async with reading(database) as connection:
        after = await usage_row(connection, lost.id)
        reversal, replacement = await usage_row(connection, ids[0]), await usage_row(connection, ids[1])
        total = await spent(connection, "team", "team_a", "CNY", 0)
        traffic = (
            await connection.execute(
                select(tables.rollup_traffic.c.requests, tables.rollup_traffic.c.errors).order_by("bucket_us")
            )
        ).all()
    assert before is not None
    assert before.settled is not None
    assert before.corrected_by is None
    assert after is not None
    assert after.corrected_by is not None
    assert structs.replace(after, corrected_by=None) == before
    assert (after.corrected_by.reversal, after.corrected_by.replacement) == tuple(map(str, ids))
    assert (after.corrected_by.reason, after.corrected_by.actor) == (OUTCOME_TURNED_UP, THE_RECORDER)
    assert reversal is not None
    assert replacement is not None
    assert (reversal.kind, reversal.corrects) == ("reversal", str(lost.id))
    assert (replacement.kind, replacement.corrects) == ("correction", str(lost.id))
    assert reversal.settled is not None
    assert reversal.settled.amount == f"-{before.settled.amount}"
    assert reversal.tokens["input"] == -1_000_000
    assert [line.price_row for line in reversal.lines] == [line.price_row for line in before.lines] == [1, 2]
    assert total == Money.parse("0.70000042", "CNY")
    assert [tuple(row) for row in traffic] == [(2, 1), (0, -1)]


async def test_a_reversal_alone_takes_everything_back(database: AsyncEngine) -> None:
    one = rated_record(Usage(input=123_457, cache_read=17, output=99_991))
    async with database.begin() as connection:
        await record(connection, [one])
        assert await reverse(connection, one.id, request_id(NOON_US), reason="billed twice", actor="admin") is True
        assert await reverse(connection, one.id, request_id(NOON_US), reason="again", actor="admin") is False
    async with reading(database) as connection:
        (row,) = await connection.execute(select(tables.rollup_traffic))
        money = (await connection.execute(select(tables.rollup_money))).all()
    assert all(row._mapping[name] == 0 for name in tables.TRAFFIC_SUMS)
    assert all(each._mapping[name] == 0 for each in money for name in tables.MONEY_SUMS)


async def test_fifty_corrections_at_once_make_one(database: AsyncEngine) -> None:
    lost = rated_record(Usage(output=10), status="lost")
    truth = rated_record(Usage(output=20), id_=lost.id)
    async with database.begin() as connection:
        await record(connection, [lost])

    async def try_it() -> bool:
        async with database.begin() as connection:
            return await correct(connection, truth, (request_id(LATER_US), request_id(LATER_US)))

    assert sum(await asyncio.gather(*(try_it() for _ in range(50)))) == 1


async def test_what_cannot_be_corrected_says_so(database: AsyncEngine) -> None:
    one = rated_record(Usage(output=10))
    reversal_id = request_id(NOON_US)
    async with database.begin() as connection:
        with pytest.raises(NotFound, match="no usage row"):
            await reverse(connection, one.id, reversal_id, reason="r", actor="a")
        await record(connection, [one])
        await reverse(connection, one.id, reversal_id, reason="r", actor="a")
        with pytest.raises(Conflict, match="is a reversal"):
            await reverse(connection, reversal_id, request_id(NOON_US), reason="r", actor="a")
