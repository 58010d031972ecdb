"""Failing over, retrying, and not doing so."""

from __future__ import annotations

import pytest

from tests.gateway.api.conftest import Gateway, Upstream


@pytest.mark.parametrize("stream", [False, True])
async def test_rule_24_a_failure_before_the_first_byte_goes_to_the_next_route(gateway: Gateway, stream: bool) -> None:
    answer = await gateway.chat(model="limping", stream=stream)
    assert answer.status_code == 200
    assert (answer.headers["x-metergate-provider"], answer.headers["x-metergate-attempts"]) == ("spare", "2")
    row = await gateway.row(answer)
    assert [attempt["status"] for attempt in row["attempts"]] == ["failed", "completed"]
    assert [attempt["provider"] for attempt in row["attempts"]] == ["dead", "spare"]
    assert row["provider"] == "spare" and row["tokens"]["output"] == 5


async def test_rule_04_what_a_failed_attempt_produced_is_kept_as_cost_and_not_charged(gateway: Gateway) -> None:
    script = "error=2;prompt=0;output=1000"
    answer = await gateway.chat(script, stream=True, headers={"x-metergate-no-retry": "1"})
    assert answer.status_code == 502
    row = await gateway.row(answer)
    assert row["settled"] == {"amount": "0", "currency": "CNY"}
    assert row["attempts"][0]["cost"]["amount"] != "0"


async def test_rule_04_a_fallback_charges_the_caller_once(gateway: Gateway, spare: Upstream) -> None:
    answer = await gateway.chat("prompt=0;output=1000000", model="limping")
    assert answer.headers["x-metergate-cost"] == "0.42 CNY"
    assert (await gateway.only_row())["settled"] == {"amount": "0.42", "currency": "CNY"}


async def test_rule_24_after_the_first_content_there_is_no_other_route(gateway: Gateway, spare: Upstream) -> None:
    answer, body = await gateway.stream("cut=1", model="two")
    assert b'"error"' in body and await spare.book() == []
    assert (await gateway.row(answer))["provider"] == "up"


async def test_rule_24_a_caller_can_forbid_fallbacks(gateway: Gateway, spare: Upstream) -> None:
    answer = await gateway.chat(model="limping", headers={"x-metergate-no-fallback": "1", "x-metergate-no-retry": "1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert await spare.book() == []


async def test_rule_23_a_single_route_is_tried_again_after_a_pause(gateway: Gateway, up: Upstream) -> None:
    answer = await gateway.chat("fail_first=1;tag=once")
    assert answer.status_code == 200 and answer.headers["x-metergate-attempts"] == "2"
    first, second = await up.book()
    assert (first["ended"], second["ended"]) == ("refused", "finished")
    assert second["request_id"] == f"{first['request_id']}-2"
    forbidden = await gateway.chat("fail_first=1;tag=never", headers={"x-metergate-no-retry": "1"})
    assert forbidden.status_code == 502


async def test_a_callers_own_fault_is_not_tried_elsewhere(gateway: Gateway, spare: Upstream) -> None:
    assert (await gateway.chat("status=400", model="two")).status_code == 400
    assert await spare.book() == []


async def test_rule_23_a_dead_target_is_not_hit_again_and_again(gateway: Gateway) -> None:
    for _ in range(6):
        await gateway.chat(model="limping")
    answer = await gateway.chat(model="limping")
    assert answer.headers["x-metergate-attempts"] == "1"
    routes = (await gateway.operator.get("/admin/v1/routes")).json()["data"]
    assert "tripped" in {route["health"] for route in routes if route["provider"] == "dead"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_absurd_requests_of_one_key_take_a_model_away_from_nobody_else(gateway: Gateway, streamed: bool) -> None:
    """A provider that stumbles over a value is not down: others go on being served, and the key comes back by itself."""
    other = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "other"})
    others = {"authorization": f"Bearer {other['key']}"}
    quick = {"x-metergate-no-retry": "1"}
    for number in range(8):
        script = "status=500" if number % 2 else "status=503"
        assert (await gateway.chat(script, stream=streamed, headers=quick)).status_code in (502, 503)
    routes = (await gateway.operator.get("/admin/v1/routes")).json()["data"]
    assert {route["health"] for route in routes if route["model"] == "m"} == {"up"}
    assert (await gateway.chat(headers=others, stream=streamed)).status_code == 200
    assert (await gateway.chat(stream=streamed)).status_code == 200


async def test_the_retries_of_one_request_count_once_and_what_two_keys_meet_opens_the_circuit(gateway: Gateway) -> None:
    other = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "other"})
    others = {"authorization": f"Bearer {other['key']}"}

    async def health() -> set[str]:
        routes = (await gateway.operator.get("/admin/v1/routes")).json()["data"]
        return {route["health"] for route in routes if route["model"] == "m"}

    for _ in range(3):
        failed = await gateway.chat("status=500")
        assert failed.status_code == 502
    assert (await gateway.chat("status=500", headers=others)).status_code == 502
    assert await health() == {"up"}
    assert (await gateway.chat("status=500", headers=others)).status_code == 502
    assert await health() == {"tripped"}


async def test_a_model_without_any_route_left_says_when_to_come_back(gateway: Gateway) -> None:
    for _ in range(4):
        await gateway.chat(model="gone")
    answer = await gateway.chat(model="gone")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_route_available")
    assert int(answer.headers["retry-after"]) >= 1
    metrics = (await gateway.operator.get("/metrics")).text
    assert 'metergate_route_circuit{model="gone",provider="dead",provider_model="x"} 2.0' in metrics
    assert 'metergate_route_circuit{model="m",provider="up",provider_model="up-m"} 0.0' in metrics


async def test_rule_25_a_hung_provider_costs_its_callers_the_timeout_and_nobody_else(gateway: Gateway) -> None:
    answer = await gateway.chat(
        "delay_ms=60000", model="two", headers={"x-metergate-no-fallback": "1", "x-metergate-no-retry": "1"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
    assert (await gateway.operator.get("/health/live")).status_code == 200
