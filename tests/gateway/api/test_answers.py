"""Plain answers: bytes, headers, money, and what a provider reports."""

from __future__ import annotations

import json

import pytest

from tests.gateway.api.conftest import CHAT, MESSAGES, PROVIDER_KEY, Gateway, Upstream


async def test_a_call_is_answered_charged_and_recorded(gateway: Gateway, up: Upstream) -> None:
    answer = await gateway.chat("prompt=1000;output=200;cached=600", temperature=0.5, x_new={"a": [1]})
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "scripted"
    # 400 x 0.28 + 600 x 0.028 + 200 x 0.42 per million, at 1:1
    assert answer.headers["x-metergate-cost"] == "0.0002128 CNY"
    assert answer.headers["x-metergate-provider"] == "up"
    assert answer.headers["x-metergate-attempts"] == "1"
    assert "x-secret-header" not in answer.headers

    (entry,) = await up.book()
    assert entry["body"]["model"] == "up-m"
    assert entry["body"]["temperature"] == 0.5 and entry["body"]["x_new"] == {"a": [1]}
    assert entry["headers"]["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert gateway.key not in json.dumps(entry)

    row = await gateway.row(answer)
    assert row["status"] == "completed" and not row["estimated"]
    assert row["tokens"]["input"] == 400 and row["tokens"]["cache_read"] == 600 and row["tokens"]["output"] == 200
    assert row["settled"] == {"amount": "0.0002128", "currency": "CNY"}
    assert (row["model"], row["provider"], row["provider_model"], row["surface"]) == ("m", "up", "up-m", "chat")
    assert (row["team_id"], row["key_id"]) == (gateway.team_id, gateway.key_id)


async def test_a_million_tokens_of_output_cost_what_the_founding_case_says(gateway: Gateway) -> None:
    answer = await gateway.chat("prompt=0;output=1000000")
    assert answer.headers["x-metergate-cost"] == "0.42 CNY"
    row = await gateway.row(answer)
    assert row["list"] == {"amount": "0.42", "currency": "USD"}
    assert row["policy"] == {"amount": "3.066", "currency": "CNY"}
    assert row["settled"] == {"amount": "0.42", "currency": "CNY"}
    assert row["price_rows"] and row["rates"]


async def test_a_completion_is_a_surface_of_its_own(gateway: Gateway) -> None:
    body = {"model": "m", "prompt": "Foxes", "user": "output=7", "max_tokens": 7}
    answer = await gateway.client.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"] == "scripted"
    assert (await gateway.row(answer))["surface"] == "completions"


async def test_rule_05_an_unpriced_model_is_recorded_as_unpriced_never_as_zero(gateway: Gateway) -> None:
    answer = await gateway.chat(model="unpriced")
    assert answer.status_code == 200
    assert "x-metergate-cost" not in answer.headers
    assert (await gateway.row(answer))["settled"] is None


async def test_an_answer_without_usage_is_estimated_and_says_so(gateway: Gateway) -> None:
    row = await gateway.row(await gateway.chat("usage=none"))
    assert row["estimated"] and row["tokens"]["input"] > 5 and row["tokens"]["output"] > 1


async def test_rule_22_a_stream_in_place_of_an_answer_is_put_together(gateway: Gateway) -> None:
    answer = await gateway.chat("mode=sse;usage=final;output=9")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["message"]["content"] == "word0 word1 word2 "
    assert (await gateway.row(answer))["tokens"]["output"] == 9


async def test_rule_13_an_absurd_maximum_is_clamped_upstream_too(gateway: Gateway, up: Upstream) -> None:
    assert (await gateway.chat(max_tokens=10**9)).status_code == 200
    assert (await up.book())[0]["body"]["max_tokens"] == 4096


async def test_no_maximum_sends_none_while_no_hard_budget_asks_for_it(gateway: Gateway, up: Upstream) -> None:
    await gateway.chat()
    assert "max_tokens" not in (await up.book())[0]["body"]


async def test_under_a_hard_budget_the_reserved_cap_goes_upstream(gateway: Gateway, up: Upstream) -> None:
    budget = {"scope": "team", "scope_id": gateway.team_id, "amount": "1.00", "currency": "CNY", "period": "total"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    assert (await gateway.chat()).status_code == 200
    assert (await up.book())[0]["body"]["max_tokens"] == 4096


async def test_a_spent_budget_is_a_402_that_says_not_to_retry(gateway: Gateway, up: Upstream) -> None:
    budget = {"scope": "key", "scope_id": gateway.key_id, "amount": "0.01", "currency": "CNY", "period": "total"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    assert (await gateway.chat("prompt=0;output=23000", max_tokens=4000)).status_code == 200
    refused = await gateway.chat(max_tokens=4000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
    assert refused.headers["x-should-retry"] == "false"
    assert len(await up.book()) == 1


async def test_tags_reach_the_row(gateway: Gateway) -> None:
    answer = await gateway.chat(headers={"x-metergate-tags": "job=nightly, owner=ann"})
    assert (await gateway.row(answer))["tags"] == {"job": "nightly", "owner": "ann"}
    bad = await gateway.chat(headers={"x-metergate-tags": "nonsense"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-metergate-tags")


async def test_a_compressed_body_is_read(gateway: Gateway) -> None:
    import gzip

    body = gzip.compress(json.dumps({"model": "m", "messages": MESSAGES}).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    assert (await gateway.client.post(CHAT, content=body, headers=headers)).status_code == 200


@pytest.mark.parametrize("tier", ["default", "priority"])
async def test_rule_06_the_tier_that_was_served_is_the_one_that_counts(gateway: Gateway, tier: str) -> None:
    answer = await gateway.chat(f"tier={tier}")
    assert ("x-metergate-cost" in answer.headers) == (tier == "default")
