"""Models, the caller's own key, health and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from gateway.settings import Settings
from tests.gateway.api.conftest import MESSAGES, Gateway, Provisioned, Upstream, running, until


async def test_models_say_their_window_and_their_price(gateway: Gateway) -> None:
    listed = (await gateway.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    by_name = {model["id"]: model for model in listed["data"]}
    assert by_name["m"]["context_window"] == 8192 and by_name["m"]["max_output_tokens"] == 4096
    expected = {"currency": "USD", "unit": "mtok", "input": "0.28", "cache_read": "0.028", "output": "0.42"}
    assert by_name["m"]["pricing"] == expected
    assert by_name["unpriced"]["pricing"] is None
    assert (await gateway.client.get("/v1/models/m")).json() == by_name["m"]
    assert (await gateway.client.get("/v1/models/nothing")).status_code == 404


async def test_a_team_sees_and_pays_its_own_sell_price_and_not_the_providers(gateway: Gateway) -> None:
    body = {"team_id": gateway.team_id, "multiplier": "1.5", "model": "up-m"}
    await gateway.admin("/sell-prices", {**body, "effective_from": "2026-01-01T00:00:00Z"})
    pricing = (await gateway.client.get("/v1/models/m")).json()["pricing"]
    expected = {"currency": "USD", "unit": "mtok", "input": "0.42", "cache_read": "0.042", "output": "0.63"}
    assert pricing == expected
    assert (await gateway.client.get("/v1/models/far")).json()["pricing"]["output"] == "0.42"
    answer = await gateway.chat("prompt=0;output=1000", max_tokens=1000)
    assert answer.headers["x-metergate-cost"] == "0.00063 CNY"
    row = await gateway.row(answer)
    assert (row["settled"]["amount"], row["cost"]["amount"]) == ("0.00063", "0.00042")


async def test_a_prepaid_caller_pays_from_its_wallet_and_stops_where_it_ends(gateway: Gateway) -> None:
    wallet = f"/wallets/{gateway.team_id}"
    answer = await gateway.operator.patch(f"/admin/v1/teams/{gateway.team_id}", json={"billing": "prepaid"})
    assert answer.status_code == 200
    refused = await gateway.chat("prompt=0;output=1000", max_tokens=1000)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (402, "false")
    error = refused.json()["error"]
    assert error["code"] == "budget_exceeded"
    assert error["message"].startswith("This team's prepaid wallet has 0 CNY left, running requests deducted, and this")
    top_up = {"external_id": "w", "amount": "0.0006", "currency": "CNY", "method": "card"}
    await gateway.admin(f"{wallet}/top-ups", top_up)

    async def admitted() -> Any:
        answer = await gateway.chat("prompt=0;output=1000", max_tokens=1000)
        return answer if answer.status_code == 200 else None

    await gateway.row(await until(admitted, "the top-up"))
    seen = (await gateway.client.get("/v1/key")).json()["wallet"]
    assert (seen["balance"], seen["remaining"], seen["currency"]) == ("0.00018", "0.00018", "CNY")
    assert (await gateway.chat("prompt=0;output=1000", max_tokens=1000)).status_code == 402
    check = (await gateway.operator.get(f"/admin/v1{wallet}/check")).json()
    assert (check["agrees"], check["balance"], check["usage_settled"]) == (True, "0.00018", "0.00042")


async def test_a_key_sees_its_own_limits_and_budgets(gateway: Gateway) -> None:
    budget = {"scope": "team", "scope_id": gateway.team_id, "amount": "1.00", "currency": "CNY", "period": "total"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    await gateway.chat("prompt=0;output=1000", max_tokens=1000)
    seen = (await gateway.client.get("/v1/key")).json()
    assert (seen["id"], seen["team_id"], seen["models"]) == (gateway.key_id, gateway.team_id, None)
    (own,) = seen["budgets"]
    assert (own["amount"], own["currency"], own["period"], own["resets_at"]) == ("1", "CNY", "total", None)
    assert (own["spent"], own["reserved"], own["remaining"]) == ("0.00042", "0", "0.99958")


async def test_health_and_metrics(gateway: Gateway) -> None:
    assert (await gateway.client.get("/health")).json() == {"status": "ok"}
    assert (await gateway.client.get("/health/live")).status_code == 200
    assert (await gateway.client.get("/health/ready")).status_code == 200
    await gateway.chat()
    await gateway.settled()
    text = (await gateway.client.get("/metrics")).text
    assert 'metergate_requests_total{model="m",provider="up",status="completed",surface="chat"} 1.0' in text
    gateway.services.drain()
    unready = await gateway.client.get("/health/ready")
    assert (unready.status_code, unready.json()["reasons"]) == (503, ["shutting down"])
    assert (await gateway.chat()).status_code == 503
    assert (await gateway.client.get("/health/live")).status_code == 200


async def test_the_openapi_document_is_served_without_a_page_from_elsewhere(gateway: Gateway) -> None:
    document = (await gateway.client.get("/schema/openapi.json")).json()
    assert any(path.startswith("/admin/v1") for path in document["paths"])


async def test_a_shutdown_ends_streams_in_band_and_closes_every_request(
    settings: Settings, provisioned: Provisioned, up: Upstream
) -> None:
    async with running(settings) as gateway:
        gateway.use(provisioned)
        body: dict[str, Any] = {"model": "m", "messages": MESSAGES, "stream": True, "user": "chunks=500;gap_ms=20"}
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            gateway.server.should_exit = True
            rest = [line async for line in lines]
        assert any('"error"' in line for line in rest) and "data: [DONE]" not in rest
        await asyncio.gather(*gateway.serving)
        assert gateway.services.journal.in_flight == 0


async def test_the_official_sdk_works_unchanged(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(api_key=gateway.key, base_url=f"http://127.0.0.1:{gateway.port}/v1") as sdk:
        models = [model async for model in sdk.models.list()]
        assert {model.id: getattr(model, "context_window", None) for model in models}["m"] == 8192
        answer = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "\u4f60\u597d"}])
        assert answer.choices[0].message.content == "scripted"
        stream = await sdk.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
        )
        parts = [chunk async for chunk in stream]
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "word0 word1 word2 "
        assert parts[-1].usage is not None and parts[-1].usage.completion_tokens == 5
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.AuthenticationError):
            await sdk.with_options(api_key="sk-mg-wrong").models.list()
