"""OpenAI's own client reads usage and costs here, and finds what the ledger has, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import httpx
import openai
import pytest

from billing.times import DAY_US, HOUR_US, SECOND_US, now_us
from billing.usage import Usage
from tests.gateway.admin.conftest import ADMIN_KEY, Gateway, Operator
from tests.gateway.admin.test_usage import book, serve

NOW_S = now_us() // SECOND_US
DAY_S, HOUR_S = DAY_US // SECOND_US, HOUR_US // SECOND_US
TOKENS = Usage(input=700, cache_read=200, cache_write_5m=100, output=90, audio_output=10)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def organization(client: httpx.AsyncClient) -> Any:
    return openai.AsyncOpenAI(
        api_key="unused",
        admin_api_key=ADMIN_KEY,
        base_url="http://gateway/v1",
        http_client=cast(Any, client),
        max_retries=0,
    ).admin.organization


async def get(operator: Operator, path: str, query: Mapping[str, str | int], *, status: int = 200) -> Any:
    headers = {"authorization": operator.authorization}
    answer = await operator.client.get(f"/v1/organization{path}", params=dict(query), headers=headers)
    assert answer.status_code == status, answer.text
    return json.loads(answer.text, parse_float=Decimal)


async def test_openais_own_client_reads_completions_usage_with_groups_and_filters(
    gateway: Gateway, operator: Operator, organization: Any
) -> None:
    team = await book(operator)
    for key in ("key_a", "key_a", "key_b"):
        await serve(gateway, team, TOKENS, key=key)
    page = await organization.usage.completions(
        start_time=NOW_S - 3 * DAY_S,
        project_ids=[team],
        group_by=["project_id", "api_key_id"],
        models=["deepseek-chat"],
    )
    assert (page.object, page.has_more, page.next_page) == ("page", False, None)
    assert {bucket.object for bucket in page.data} == {"bucket"}
    assert [bucket.start_time % DAY_S for bucket in page.data] == [0] * len(page.data)
    assert all(bucket.end_time - bucket.start_time == DAY_S for bucket in page.data)
    assert len(page.data) in (4, 5)
    assert [len(bucket.results) for bucket in page.data[:3]] == [0, 0, 0]
    a, b = [result for bucket in page.data for result in bucket.results]
    assert (a.object, a.project_id, a.api_key_id, a.model) == (
        "organization.usage.completions.result",
        team,
        "key_a",
        None,
    )
    assert (a.input_tokens, a.input_cached_tokens, a.input_cache_write_tokens, a.output_tokens) == (2000, 400, 200, 200)
    assert (a.input_text_tokens, a.output_audio_tokens, a.num_model_requests) == (1400, 20, 2)
    assert (b.api_key_id, b.num_model_requests) == ("key_b", 1)
    only_b = await organization.usage.completions(start_time=NOW_S - HOUR_S, bucket_width="1h", api_key_ids=["key_b"])
    assert sum(r.num_model_requests for bucket in only_b.data for r in bucket.results) == 1
    assert all(bucket.end_time - bucket.start_time == HOUR_S for bucket in only_b.data)
    two = await organization.usage.completions(start_time=NOW_S - HOUR_S, api_key_ids=["key_a", "key_b", "key_c"])
    assert sum(r.num_model_requests for bucket in two.data for r in bucket.results) == 3


async def test_openais_own_client_reads_costs_that_are_the_ledgers_to_the_last_digit(
    gateway: Gateway, operator: Operator, organization: Any
) -> None:
    team = await book(operator)
    for _ in range(3):
        await serve(gateway, team, Usage(input=7, output=11))
    page = await organization.usage.costs(start_time=NOW_S - DAY_S, group_by=["project_id", "line_item"])
    (result,) = [result for bucket in page.data for result in bucket.results]
    assert (result.object, result.project_id, result.line_item) == ("organization.costs.result", team, "deepseek-chat")
    rows = (await operator.get("/usage/requests", team_id=team))["data"]
    ledger = sum(Decimal(row["settled"]["amount"]) for row in rows)
    raw = await get(operator, "/costs", {"start_time": NOW_S - DAY_S})
    amounts = [each["amount"] for bucket in raw["data"] for each in bucket["results"]]
    assert amounts == [{"value": ledger, "currency": "cny"}]
    assert ledger == Decimal("0.00001974")


async def test_pages_follow_each_other_without_a_gap(operator: Operator, organization: Any) -> None:
    start = NOW_S - 100 * HOUR_S
    seen: list[int] = []
    page_name: str | None = None
    for _ in range(20):
        extra = {"page": page_name} if page_name else {}
        page = await organization.usage.completions(
            start_time=start, end_time=NOW_S, bucket_width="1h", limit=7, **extra
        )
        seen += [bucket.start_time for bucket in page.data]
        page_name = page.next_page
        assert page.has_more == (page_name is not None)
        if page_name is None:
            break
    assert seen == list(range(start - start % HOUR_S, NOW_S, HOUR_S))
    for width, default, most in (("1h", 24, 168), ("1d", 7, 31)):
        query: dict[str, str | int] = {"start_time": NOW_S - 300 * DAY_S, "bucket_width": width}
        first = await get(operator, "/usage/completions", query)
        assert (len(first["data"]), first["has_more"]) == (default, True)
        assert len((await get(operator, "/usage/completions", {**query, "limit": most}))["data"]) == most
        await get(operator, "/usage/completions", {**query, "limit": most + 1}, status=400)
    costs = await get(operator, "/costs", {"start_time": NOW_S - 300 * DAY_S, "limit": 180})
    assert (len(costs["data"]), costs["has_more"]) == (180, True)


REFUSED: tuple[tuple[str, dict[str, str], str], ...] = (
    ("/usage/completions", {}, "start_time"),
    ("/usage/completions", {"start_time": "yesterday"}, "start_time"),
    ("/usage/completions", {"start_time": "99999999999"}, "start_time"),
    ("/usage/completions", {"bucket_width": "1m"}, "bucket_width"),
    ("/usage/completions", {"bucket_width": "1w"}, "bucket_width"),
    ("/usage/completions", {"limit": "0"}, "limit"),
    ("/usage/completions", {"limit": "²"}, "limit"),
    ("/usage/completions", {"end_time": "1700000000"}, "end_time"),
    ("/usage/completions", {"group_by": "user_id"}, "group_by"),
    ("/usage/completions", {"group_by": "colour"}, "group_by"),
    ("/usage/completions", {"batch": "true"}, "batch"),
    ("/usage/completions", {"user_ids[]": "u"}, "user_ids"),
    ("/usage/completions", {"page": "page_x"}, "page"),
    ("/usage/completions", {"page": "page_MQ"}, "page"),
    ("/usage/completions", {"models": "a\x00"}, "models"),
    ("/usage/completions", {"colour": "red"}, "colour"),
    ("/costs", {"bucket_width": "1h"}, "bucket_width"),
    ("/costs", {"group_by": "model"}, "group_by"),
    ("/costs", {"limit": "181"}, "limit"),
)


async def test_what_cannot_be_answered_is_a_400_that_names_the_parameter(operator: Operator) -> None:
    for path, query, param in REFUSED:
        needed = {} if param == "start_time" else {"start_time": str(NOW_S - DAY_S)}
        answer = await get(operator, path, {**needed, **query}, status=400)
        assert answer["error"]["param"] == param
        assert answer["error"]["message"].startswith(f"{param}: ")
