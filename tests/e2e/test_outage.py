"""One provider hangs, one fails, one is well; and a configuration is replaced while streams run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.outage import TIMEOUT_S, run
from tests.e2e.product import Product, running, until
from tests.gateway.api.conftest import Upstream

STREAMS = 200
CONFIG = """\
providers:
  up: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", idle_timeout_s: {idle_s}}}
models:
  - {{name: m, routes: [{{provider: up, model: up-m}}]}}
"""
NEW = "  - {name: newcomer, routes: [{provider: up, model: up-m}]}\n"
CHUNKS = 40
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"[[chunks={CHUNKS};gap_ms=100]]"}]}


def test_rules_23_25_callers_hardly_notice_a_provider_that_hangs_and_one_that_fails(tmp_path: Path) -> None:
    outage = run(tmp_path, requests=400, callers=8)
    assert outage.succeeded >= 0.999 * outage.requests, outage
    assert outage.hung_attempts > 0 and outage.longest_hung_s < TIMEOUT_S + 5.0, outage
    assert outage.retries <= outage.retry_budget, outage


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream("openai")
    yield upstream
    upstream.stop()


async def streams(product: Product, begun: asyncio.Semaphore) -> list[str]:
    """All of them at once; `begun` is released at the first content of each."""

    async def one(client: httpx.AsyncClient) -> str:
        text = ""
        async with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
            async for piece in answer.aiter_text():
                if not text:
                    begun.release()
                text += piece
        return text

    headers = {"authorization": f"Bearer {product.team_key}"}
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(
        base_url=product.url, headers=headers, timeout=60, limits=limits, trust_env=False
    ) as client:
        return await asyncio.gather(*(one(client) for _ in range(STREAMS)))


async def test_a_reload_under_two_hundred_streams_drops_none_and_a_broken_file_changes_nothing(
    tmp_path: Path, upstream: Upstream
) -> None:
    """The provider itself is replaced: running streams keep the one that they began with."""
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(port=upstream.port, idle_s=30))
    with running(tmp_path / "var", config=config) as product:
        begun = asyncio.Semaphore(0)
        running_ = asyncio.create_task(streams(product, begun))
        async with asyncio.timeout(60):
            for _ in range(STREAMS):
                await begun.acquire()
        config.write_text(CONFIG.format(port=upstream.port, idle_s=40) + NEW)
        product.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(until, lambda: "2 models" in product.text, 20, "the reload")
        assert not running_.done(), "the streams ended before the reload"
        config.write_text(CONFIG.format(port=upstream.port, idle_s=40).replace("provider: up", "provider: gone"))
        product.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(until, lambda: "there is no provider 'gone'" in product.text, 20, "why not")
        told = await running_
        assert sum(text.endswith("data: [DONE]\n\n") for text in told) == STREAMS
        assert {text.count('"content":') for text in told} == {CHUNKS}
        with product.caller() as caller:
            served = {model["id"] for model in caller.get("/v1/models").json()["data"]}
            assert served == {"m", "newcomer"}
            body = {"model": "newcomer", "messages": BODY["messages"]}
            assert caller.post("/v1/chat/completions", json=body).status_code == 200
