"""An engine with `cost_per_hour`: its own time is what a request costs us, and no caller is told."""

from __future__ import annotations

import json

import msgspec
import pytest

from gateway.settings import Settings
from tests.gateway.api.conftest import Gateway


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
