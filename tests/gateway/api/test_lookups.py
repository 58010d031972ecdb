"""Models, the caller's own key, health and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from gateway.settings import Settings
from tests.gateway.api.conftest import MESSAGES, Gateway, Provisioned, Upstream, running


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
