"""Quantiles of what is in the books: out of the rollups' histogram, and of the newest requests' own times."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing import latency as module
from billing.database import reading
from billing.latency import latency
from billing.ledger import record
from billing.times import SECOND_US
from billing.usage import Usage
from tests.billing.helpers import at, rated_record, request_id

START, END = at("2026-11-29T00:00:00Z"), at("2026-12-01T00:00:00Z")


async def test_quantiles_are_those_of_the_requests_of_the_range_and_the_team(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for number in range(20):
        moment = at("2026-11-30T02:00:00Z") + number * SECOND_US
        row = rated_record(
            Usage(output=1),
            id_=request_id(moment),
            team="team_1" if number < 19 else "team_2",
            latency_us=[90_000, 400_000, 40_000_000][(number > 9) + (number > 18)],
        )
        rows.append(msgspec.structs.replace(row, ttft_us=None if number == 18 else number * 10_000))
    rows.append(rated_record(Usage(output=1), id_=request_id(at("2026-11-28T02:00:00Z")), team="team_1"))
    async with database.begin() as connection:
        await record(connection, rows)
    async with reading(database) as connection:
        everybody = await latency(connection, START, END, percentiles=(50, 95, 100))
        one = await latency(connection, START, END, team_id="team_1", percentiles=(50, 95, 100))
        nobody = await latency(connection, START, END, team_id="team_3")
        monkeypatch.setattr(module, "NEWEST", 3)
        newest = await latency(connection, START, END, percentiles=(50,))
    assert (everybody.requests, everybody.within_ms) == (20, {50: 100, 95: 500, 100: None})
    assert (everybody.sampled, everybody.first_token_ms) == (19, {50: 90, 95: 170, 100: 190})
    assert (one.requests, one.within_ms, one.sampled) == (19, {50: 100, 95: 500, 100: 500}, 18)
    assert (nobody.requests, nobody.within_ms, nobody.first_token_ms, nobody.sampled) == (0, {}, {}, 0)
    assert (newest.sampled, newest.first_token_ms) == (2, {50: 170})
