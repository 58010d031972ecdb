"""An engine with `cost_per_hour`: its own time is what a request costs us, and no caller is told."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.settings import Settings
from tests.gateway.api.conftest import CHAT, MESSAGES, Gateway


@pytest.fixture
def settings(settings: Settings) -> Settings:
    motor = msgspec.structs.replace(settings.providers["motor"], cost_per_hour="7.20 USD")
    return msgspec.structs.replace(settings, providers={**settings.providers, "motor": motor})


async def test_an_answer_costs_its_engine_time_and_is_sold_by_its_tokens(gateway: Gateway) -> None:
    answer = await gateway.chat("output=1000000;prompt=0;compute_us=500000", model="engine")
    assert answer.json()["usage"] == {"prompt_tokens": 0, "completion_tokens": 1_000_000, "total_tokens": 1_000_000}
    row = await gateway.row(answer)
    assert (row["settled"]["amount"], row["cost"]) == ("0.42", {"amount": "0.001", "currency": "USD"})
    (attempt,) = row["attempts"]
    assert attempt["cost_per_hour"] == {"amount": "7.2", "currency": "USD"}
    assert (attempt["price_rows"], attempt["tokens"]["compute_us"]) == ([], 500_000)


async def test_a_stream_costs_its_engine_time_and_does_not_tell_it(gateway: Gateway) -> None:
    asked = {"model": "engine", "stream_options": {"include_usage": True}}
    answer, body = await gateway.stream("output=5;compute_us=500000", **asked)
    usage = json.loads(body.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
    assert (usage["completion_tokens"], "cost" in usage, "metergate" in usage) == (5, True, False)
    assert (await gateway.row(answer))["cost"] == {"amount": "0.001", "currency": "USD"}


async def test_rule_20_a_stream_that_its_caller_left_costs_what_the_engine_says_it_took(gateway: Gateway) -> None:
    script = "prompt=90;output=41;chunks=20;gap_ms=20;compute_us=750000"
    body = {"model": "engine", "messages": MESSAGES, "user": script, "stream": True}
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                break
    row = await gateway.only_row()
    assert (row["status"], row["cost"]) == ("cancelled", {"amount": "0.0015", "currency": "USD"})
    assert row["attempts"][0]["tokens"]["compute_us"] == 750_000
