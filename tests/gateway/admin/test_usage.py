from __future__ import annotations

import csv
import io
from decimal import Decimal
from uuid import UUID

import httpx
import pytest
from sqlalchemy import text

from billing.ledger import AttemptRecord, UsageRecord, record
from billing.rating import AttemptUsage, Payer, rate
from billing.usage import Usage
from gateway.ids import new_request_id, time_us_of
from tests.gateway.admin.conftest import ADMIN_KEY, Gateway, Operator

MILLION_OUT = Usage(output=1_000_000)
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}


async def book(operator: Operator) -> str:
    """DeepSeek V3.2 in USD, policy rate 7.3, and a team that settles in CNY at 1:1. Returns the team."""
    start = "2026-01-01T00:00:00Z"
    for token_class, amount in (("input", "0.28"), ("output", "0.42")):
        await operator.post(
            "/prices",
            {
                "provider": "deepseek",
                "model": "deepseek-chat",
                "token_class": token_class,
                "currency": "USD",
                "amount_per_mtok": amount,
                "effective_from": start,
            },
        )
    await operator.post(
        "/rates",
        {"base": "USD", "quote": "CNY", "kind": "policy", "rate": "7.3", "source": "manual", "effective_from": start},
    )
    team = await operator.team()
    await operator.post(
        "/terms",
        {"team_id": team, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY", "effective_from": start},
    )
    return team


async def serve(
    gateway: Gateway, team: str, usage: Usage = MILLION_OUT, key: str = "key_a", model: str = "deepseek-chat"
) -> UUID:
    """One request answered by DeepSeek, rated with the catalog's books and written as the recorder would."""
    request_id = new_request_id()
    snapshot = gateway.catalog.snapshot
    charged = AttemptUsage(1, "deepseek", model, "deepseek", usage)
    rated = rate(
        snapshot.books,
        snapshot.pins,
        at_us=time_us_of(request_id),
        payer=Payer(team, "CNY"),
        charged=charged,
        attempts=[charged],
    )
    attempt = AttemptRecord(
        1, "deepseek", model, "completed", usage, rated.attempts[0].cost, rated.attempts[0].price_row_ids, None,
        time_us_of(request_id), 1_234_000, None,
    )  # fmt: skip
    row = UsageRecord(
        id=request_id,
        team_id=team,
        key_id=key,
        model=model,
        provider="deepseek",
        provider_model=model,
        surface="chat.completions",
        status="completed",
        estimated=False,
        streamed=False,
        usage=usage,
        rated=rated,
        attempts=(attempt,),
        tags={"project": "x"},
        latency_us=1_234_000,
        ttft_us=None,
        error=None,
        pins=snapshot.pins,
        settlement_currency="CNY",
    )
    async with gateway.database.begin() as connection:
        assert (await record(connection, [row])).inserted == 1
    return request_id


async def test_a_million_deepseek_tokens_settled_one_to_one_save_86_3014_percent(
    gateway: Gateway, operator: Operator
) -> None:
    team = await book(operator)
    request_id = await serve(gateway, team)
    row = await operator.get(f"/usage/requests/{request_id}")
    assert row["list"] == {"amount": "0.42", "currency": "USD"}
    assert row["policy"] == {"amount": "3.066", "currency": "CNY"}
    assert row["settled"] == {"amount": "0.42", "currency": "CNY"}
    assert row["cost"] == {"amount": "0.42", "currency": "USD"}
    assert row["saving_percent"] == "86.3014"
    assert row["tokens"]["output"] == 1_000_000
    (price,) = row["price_rows"]
    assert (price["provider"], price["token_class"], price["amount"], price["currency"]) == (
        "deepseek",
        "output",
        "0.42",
        "USD",
    )
    assert [(rate["kind"], rate["rate"]) for rate in row["rates"]] == [("policy", "7.3")]
    assert row["terms"]["rate"] == "1"
    assert [(each["sequence"], each["provider"], each["status"]) for each in row["attempts"]] == [
        (1, "deepseek", "completed")
    ]
    assert (row["latency_ms"], row["ttft_ms"], row["status"], row["estimated"]) == (1234, None, "completed", False)


async def test_rule_07_a_later_price_rate_or_term_changes_no_past_row(gateway: Gateway, operator: Operator) -> None:
    team = await book(operator)
    request_id = await serve(gateway, team)
    before = await operator.get(f"/usage/requests/{request_id}")
    price = {"provider": "deepseek", "model": "deepseek-chat", "token_class": "output", "currency": "USD"}
    await operator.post("/prices", {**price, "amount_per_mtok": "9", "effective_from": "2026-02-01T00:00:00Z"})
    rate = {"base": "USD", "quote": "CNY", "kind": "policy", "rate": "6.5"}
    await operator.post("/rates", {**rate, "effective_from": "2026-02-01T00:00:00Z"})
    await operator.post("/terms", {"team_id": team, "policy": "fixed", "rate": "7", "base": "USD", "quote": "CNY"})
    assert await operator.get(f"/usage/requests/{request_id}") == before


async def test_usage_sums_per_interval_and_group(gateway: Gateway, operator: Operator) -> None:
    team = await book(operator)
    for key in ("key_a", "key_a", "key_b"):
        await serve(gateway, team, key=key)
    (bucket,) = (await operator.get("/usage", interval="month", timezone="Asia/Shanghai", group_by="team,model"))[
        "data"
    ]
    assert bucket["group"] == {"team": team, "model": "deepseek-chat"}
    assert (bucket["requests"], bucket["errors"], bucket["unpriced"], bucket["estimated"]) == (3, 0, 0, 0)
    assert bucket["tokens"] == {"output": 3_000_000}
    assert bucket["list"] == [{"amount": "1.26", "currency": "USD"}]
    assert bucket["settled"] == [{"amount": "1.26", "currency": "CNY"}]
    assert bucket["policy"] == [{"amount": "9.198", "currency": "CNY"}]
    assert bucket["cost"] == [{"amount": "1.26", "currency": "USD"}]
    assert bucket["saving_percent"] == "86.3014"
    by_key = (await operator.get("/usage", group_by="key"))["data"]
    assert {each["group"]["key"]: each["requests"] for each in by_key} == {"key_a": 2, "key_b": 1}
    only = (await operator.get("/usage", key_id="key_b"))["data"]
    assert [each["requests"] for each in only] == [1]


async def test_an_unpriced_request_is_flagged_and_saves_nothing(gateway: Gateway, operator: Operator) -> None:
    team = await book(operator)
    request_id = await serve(gateway, team, model="mystery")
    row = await operator.get(f"/usage/requests/{request_id}")
    assert (row["settled"], row["cost"], row["saving_percent"]) == (None, None, None)
    assert "mystery" in row["unpriced"]
    (bucket,) = (await operator.get("/usage"))["data"]
    assert (bucket["unpriced"], bucket["saving_percent"]) == (1, None)
    assert [each["id"] for each in (await operator.get("/usage/requests", unpriced="true"))["data"]] == [
        str(request_id)
    ]
    assert (await operator.get("/usage/requests", unpriced="false"))["data"] == []


async def test_rule_33_requests_page_newest_first_and_every_one_comes_once(
    gateway: Gateway, operator: Operator
) -> None:
    team = await book(operator)
    made = [str(await serve(gateway, team)) for _ in range(5)]
    first = await operator.get("/usage/requests", limit=3)
    second = await operator.get("/usage/requests", limit=3, cursor=first["next_cursor"])
    assert [row["id"] for row in first["data"] + second["data"]] == made[::-1]
    assert second["next_cursor"] is None
    assert (await operator.get("/usage/requests", team_id="team_nobody"))["data"] == []
    assert (await operator.get("/usage/requests", end="2026-01-01T00:00:00Z"))["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"interval": "minute"}, "interval"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"group_by": "team,colour"}, "group_by"),
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-02-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "end"),
        ({"start": "2020-01-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "end"),
        ({"limit": "100000"}, "limit"),
    ],
)
async def test_a_report_that_cannot_be_asked_for_is_a_422(
    operator: Operator, query: dict[str, object], param: str
) -> None:
    assert (await operator.get("/usage", status=422, **query))["error"]["param"] == param


async def test_a_request_nobody_made_is_a_404(operator: Operator) -> None:
    answer = await operator.get(f"/usage/requests/{new_request_id()}", status=404)
    assert answer["error"]["code"] == "not_found"


async def test_the_rows_sum_to_the_rollup_to_the_last_nano(gateway: Gateway, operator: Operator) -> None:
    team = await book(operator)
    for number in range(1, 8):
        await serve(gateway, team, Usage(input=number * 7, output=number * 11))
    async with gateway.database.connect() as connection:
        rows = await connection.scalar(text("SELECT sum(settled_nano) FROM usage"))
        rolled = await connection.scalar(text("SELECT sum(settled_nano) FROM rollup_traffic"))
    assert int(rows or 0) == int(rolled or 0) > 0


async def test_a_range_and_its_filters_are_a_focus_file_that_sums_to_the_ledger(
    gateway: Gateway, operator: Operator, client: httpx.AsyncClient
) -> None:
    team = await book(operator)
    key = (await operator.post("/keys", {"team_id": team, "name": "ci"}))["id"]
    for number in range(4):
        await serve(gateway, team, Usage(input=1_234 + number, output=567), key=key if number else "key_other")

    async def rows(**query: str) -> list[dict[str, str]]:
        answer = await client.get("/admin/v1/usage/focus", params=query, headers=HEADERS)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8"), answer.text
        assert answer.headers["content-disposition"].startswith('attachment; filename="focus-20')
        return list(csv.DictReader(io.StringIO(answer.text)))

    for query, count in (({}, 4), ({"team_id": team}, 4), ({"key_id": key}, 3), ({"model": "x"}, 0)):
        asked = {name: str(value) for name, value in query.items()}
        found = await rows(**asked)
        ledger = (await operator.get("/usage/requests", **query))["data"]
        assert len(ledger) == count
        billed = sum(Decimal(row["BilledCost"]) for row in found)
        assert billed == sum(Decimal(row["settled"]["amount"]) for row in ledger)
        assert {row["x_TokenClass"] for row in found} == ({"input", "output"} if count else set())
    assert {(row["SubAccountId"], row["SubAccountName"]) for row in await rows(key_id=key)} == {(key, "ci")}
    assert await rows(key_id=key, team_id=await operator.team("ads")) == []
    assert await rows(key_id="key_nobody") == []
    for query, field in (
        ({"interval": "week"}, "interval"),
        ({"timezone": "x"}, "timezone"),
        ({"start": "x"}, "start"),
    ):
        assert (await operator.get("/usage/focus", status=422, **query))["error"]["param"] == field
