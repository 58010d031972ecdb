"""A provider's export against our attempts: matched, differing, missing here, missing there, by day and model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database, reading
from billing.ledger import record
from billing.times import DAY_US, HOUR_US
from billing.usage import Usage
from gateway.metering.provider_export import Comparison, Counts, ExportError, compare, read_export
from tests.billing.helpers import NOON_US, rated_record, request_id

DAY = NOON_US // DAY_US * DAY_US


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(database_url)
    yield engine
    await engine.dispose()


def bucket(day_us: int, *results: dict[str, object]) -> dict[str, object]:
    return {"object": "bucket", "start_time": day_us // 1_000_000, "end_time": 0, "results": list(results)}


def result(model: str, requests: int, used: int, cached: int, output: int) -> dict[str, object]:
    return {
        "object": "organization.usage.completions.result", "model": model, "num_model_requests": requests,
        "input_tokens": used, "input_cached_tokens": cached, "output_tokens": output, "project_id": None,
    }  # fmt: skip


def page(*buckets: dict[str, object], more: bool = False) -> bytes:
    return json.dumps({"object": "page", "data": buckets, "has_more": more, "next_page": None}).encode()


def test_json_is_summed_by_day_and_model() -> None:
    both = result("m", 2, 100, 40, 7)
    export = page(bucket(DAY, both, result("n", 1, 1, 0, 1)), bucket(DAY + 5 * HOUR_US, both))
    assert read_export(export) == {(DAY, "m"): Counts(4, 200, 80, 14), (DAY, "n"): Counts(1, 1, 0, 1)}
    pages = json.dumps([json.loads(page(bucket(DAY, both), more=True)), json.loads(page(bucket(DAY, both)))]).encode()
    assert read_export(pages) == {(DAY, "m"): Counts(4, 200, 80, 14)}


@pytest.mark.parametrize("moment", [f"{DAY // 1_000_000}", "2026-11-30", "2026-11-30T00:00:00+00:00"])
def test_csv_says_the_same(moment: str) -> None:
    export = (
        "\ufeffstart_time,model,num_model_requests,input_tokens,input_cached_tokens,output_tokens\r\n"
        f"{moment},m,2,100,40,7\r\n{moment},m,1,1,,1\r\n"
    )
    assert read_export(export.encode()) == {(DAY, "m"): Counts(3, 101, 40, 8)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1: the columns are none"),
        (b"{", "no JSON"),
        (b"[]", "no rows"),
        (b'{"data": 3}', "page 1: no `data` list"),
        (page(bucket(DAY, {"input_tokens": 1})), "page 1, bucket 1: no `model`; export the usage grouped by model"),
        (page(bucket(DAY, result("m", 1, -1, 0, 1))), "input_tokens is '-1', not a count"),
        (page(bucket(DAY, result("m", 1, 1, 0, 1)), more=True), "has_more"),
        (b"start_time,model,num_model_requests,input_tokens,output_tokens\nyesterday,m,1,1,1", "line 2: 'yesterday'"),
        (b"date,model,num_model_requests,input_tokens\n2026-11-30,m,1,1", "line 2: no `output_tokens`"),
    ],
)
def test_what_is_no_export_is_refused_with_its_place(content: bytes, said: str) -> None:
    with pytest.raises(ExportError) as refusal:
        read_export(content)
    assert said in str(refusal.value)


async def test_each_day_and_model_has_its_verdict(engine: AsyncEngine) -> None:
    used = Usage(input=60, cache_read=40, output=7)
    same = [rated_record(used) for _ in range(2)]
    late = rated_record(used, id_=request_id(DAY - 1000))
    late = replace(late, attempts=(replace(late.attempts[0], started_at_us=DAY + 1),))
    other = rated_record(used, estimated=True)
    other = replace(other, attempts=(replace(other.attempts[0], provider_model="deepseek-reasoner"),))
    tomorrow = rated_record(used, id_=request_id(DAY + DAY_US + 1000))
    async with engine.begin() as connection:
        await record(connection, [*same, late, other, tomorrow])
    export = read_export(
        page(
            bucket(
                DAY, result("deepseek-chat-2026-08-01", 3, 300, 120, 21), result("deepseek-reasoner", 1, 101, 40, 7),
                result("nobody", 1, 5, 0, 5),
            )
        )
    )  # fmt: skip
    async with reading(engine) as connection:
        found = await compare(connection, "deepseek", export)
        aliased = await compare(connection, "deepseek", export, aliases={"nobody": "deepseek-reasoner"})
        elsewhere = await compare(connection, "openai", export)
    each = Counts(1, 100, 40, 7)
    assert found == [
        Comparison("2026-11-30", "deepseek-chat", "matched", each + each + each, each + each + each, 0),
        Comparison("2026-11-30", "deepseek-reasoner", "differing", each, Counts(1, 101, 40, 7), 1),
        Comparison("2026-11-30", "nobody", "missing_here", Counts(), Counts(1, 5, 0, 5), 0),
    ]
    assert [one.there for one in aliased] == [each + each + each, Counts(2, 106, 40, 12)]
    assert {one.verdict for one in elsewhere} == {"missing_here"}


async def test_a_model_that_the_provider_does_not_know_is_missing_there(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await record(connection, [rated_record(Usage(input=1, output=1))])
    async with reading(engine) as connection:
        found = await compare(connection, "deepseek", {(DAY, "other"): Counts(1, 1, 0, 1)})
    assert [(one.model, one.verdict) for one in found] == [
        ("deepseek-chat", "missing_there"),
        ("other", "missing_here"),
    ]
