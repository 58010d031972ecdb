"""Answers given again: to the very same request of the same team, at no cost, and never where that would be another answer."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer_cache import MemoryAnswers
from gateway.settings import Settings, load_settings
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.api.conftest import MESSAGES, Gateway, Provisioned, Upstream, environment, running

CONFIG = """\
providers:
  up: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1"}}
models:
  - {{name: m, cache: team, routes: [{{provider: up, model: up-m}}]}}
  - {{name: shared, cache: shared, routes: [{{provider: up, model: up-m}}]}}
  - {{name: plain, routes: [{{provider: up, model: up-m}}]}}
cache: {{max_answer_bytes: 20000}}
"""
CACHE = "x-metergate-cache"


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path, up: Upstream, provisioned: Provisioned) -> Settings:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(up=up.port))
    database = tmp_path / "metergate.db"
    shutil.copyfile(provisioned.database, database)
    environ = environment(tmp_path, database)
    if getattr(request, "param", "memory") == "valkey":
        server: ValkeyServer = request.getfixturevalue("valkey")
        server.command("FLUSHALL")
        environ["METERGATE_REDIS_URL"] = server.url
    return load_settings(config, environ)


@pytest.fixture
async def gateway(settings: Settings, provisioned: Provisioned) -> AsyncIterator[Gateway]:
    async with running(settings) as gateway:
        gateway.use(provisioned)
        yield gateway


async def twice(gateway: Gateway, script: str = "", **more: Any) -> tuple[httpx.Response, httpx.Response]:
    fields = {"temperature": 0, **more}
    first = await gateway.chat(script, **fields)
    await gateway.settled()
    await gateway.services.answers.find(b"")  # behind what is being kept
    return first, await gateway.chat(script, **fields)


@pytest.mark.parametrize("settings", ["memory", "valkey"], indirect=True)
async def test_rule_04_a_hit_costs_nothing_and_says_so_and_leaves_a_row(gateway: Gateway, up: Upstream) -> None:
    first, second = await twice(gateway, "output=7")
    assert CACHE not in first.headers and second.headers[CACHE] == "hit"
    assert second.content == first.content and second.headers["content-type"] == "application/json"
    assert (first.headers["x-metergate-cost"] != "0 CNY", second.headers["x-metergate-cost"]) == (True, "0 CNY")
    assert len(await up.book()) == 1
    row = await gateway.row(second)
    assert (row["status"], row["provider"], row["model"]) == ("completed", "cache", "m")
    assert not any(row["tokens"].values()) and row["settled"] == {"amount": "0", "currency": "CNY"}
    assert row["cost"] is None or row["cost"]["amount"] == "0"
    metrics = (await gateway.operator.get("/metrics")).text
    assert 'metergate_unpriced_requests_total{model="m",provider="cache"} 1' not in metrics
    assert 'metergate_answer_cache_total{result="hit"} 1.0' in metrics


@pytest.mark.parametrize(
    ("settings", "wanted"), [("memory", True), ("valkey", True), ("memory", False)], indirect=["settings"]
)
async def test_a_stream_is_given_again_as_a_stream(gateway: Gateway, up: Upstream, wanted: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if wanted else {}
    first, second = await twice(gateway, "chunks=5", stream=True, **options)
    assert second.headers[CACHE] == "hit" and second.headers["content-type"].startswith("text/event-stream")
    cost = (await gateway.row(first))["settled"]["amount"]
    assert second.text == first.text.replace(f'"cost":"{cost} CNY"', '"cost":"0 CNY"')
    assert ('"cost":"0 CNY"' in second.text) == wanted and second.text.endswith("data: [DONE]\n\n")
    assert len(await up.book()) == 1
    other: dict[str, Any] = {} if wanted else {"stream_options": {"include_usage": True}}
    assert CACHE not in (await gateway.chat("chunks=5", temperature=0, stream=True, **other)).headers
    assert CACHE not in (await gateway.chat("chunks=5", temperature=0)).headers


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_every_surface_is_given_its_own_form(gateway: Gateway, up: Upstream, path: str) -> None:
    for stream in (False, True):
        await up.clear()
        await form(gateway, up, path, stream)


async def form(gateway: Gateway, up: Upstream, path: str, stream: bool) -> None:
    body: dict[str, Any] = {"model": "m", "temperature": 0, "stream": stream}
    body |= {"messages": MESSAGES, "max_tokens": 50} if path == "/v1/messages" else {"input": "hi"}
    first = await gateway.client.post(path, json=body)
    await gateway.settled()
    await gateway.services.answers.find(b"")
    second = await gateway.client.post(path, json=body)
    assert first.status_code == 200 and second.headers[CACHE] == "hit"
    if stream:
        assert '"cost":"0 CNY"' in second.text and second.text.count("event: ") == first.text.count("event: ")
    else:
        assert second.content == first.content
    assert len(await up.book()) == 1


async def test_a_sampled_answer_is_kept_only_where_the_caller_asks(gateway: Gateway, up: Upstream) -> None:
    for fields in ({}, {"temperature": 0.7}, {"temperature": None}, {"seed": 1}):
        assert CACHE not in (await gateway.chat(**fields)).headers
        await gateway.settled()
        assert CACHE not in (await gateway.chat(**fields)).headers
    await gateway.chat(headers={CACHE: "1"})
    await gateway.settled()
    await gateway.services.answers.find(b"")
    assert (await gateway.chat(headers={CACHE: "1"})).headers[CACHE] == "hit"
    assert CACHE not in (await gateway.chat()).headers
    assert CACHE not in (await gateway.chat(headers={CACHE: "1", "x-metergate-no-cache": "1"})).headers


async def test_another_request_and_a_model_without_a_cache_are_asked_anew(gateway: Gateway, up: Upstream) -> None:
    await twice(gateway)
    for fields in (
        {"max_tokens": 9},
        {"messages": [{"role": "user", "content": "else"}]},
        {"top_p": 1},
        {"model": "plain"},
    ):
        assert CACHE not in (await gateway.chat(temperature=0, **fields)).headers
    _, second = await twice(gateway, model="plain")
    assert CACHE not in second.headers


async def test_a_team_never_sees_what_another_was_told_unless_the_model_shares(gateway: Gateway) -> None:
    team = await gateway.admin("/teams", {"name": "other", "settlement_currency": "USD"})
    key = await gateway.admin("/keys", {"team_id": team["id"], "name": "k"})
    theirs = {"authorization": f"Bearer {key['key']}"}
    await twice(gateway)
    assert CACHE not in (await gateway.chat(temperature=0, headers=theirs)).headers
    await twice(gateway, model="shared")
    hit = await gateway.chat(temperature=0, model="shared", headers=theirs)
    assert (hit.headers[CACHE], hit.headers["x-metergate-cost"]) == ("hit", "0 USD")


async def test_what_is_no_whole_answer_or_too_large_is_not_kept(gateway: Gateway) -> None:
    scripts = [
        ("status=500", False),
        ("status=400", False),
        ("cut=1", True),
        ("error=2", True),
        ("line_bytes=30000", True),
    ]
    for script, stream in scripts:
        _, second = await twice(gateway, script, stream=stream, headers={"x-metergate-no-retry": "1"})
        assert CACHE not in second.headers


async def test_a_hit_needs_no_provider_but_a_key_with_room(gateway: Gateway) -> None:
    await twice(gateway)
    for route in gateway.services.router.find("m").routes:
        route.provider.disconnect()
    assert (await gateway.chat(temperature=0)).headers[CACHE] == "hit"
    limits = {"requests_per_minute": 2}
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "few", "limits": limits})
    few = {"authorization": f"Bearer {key['key']}"}
    assert [(await gateway.chat(temperature=0, headers=few)).status_code for _ in range(3)] == [200, 200, 429]
    assert (await gateway.chat(temperature=0, headers={"authorization": "Bearer sk-mg-no"})).status_code == 401


async def test_a_hit_draws_on_no_budget(gateway: Gateway) -> None:
    budget = {"scope": "team", "scope_id": gateway.team_id, "amount": "1", "currency": "CNY", "period": "day"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    first, second = await twice(gateway, "output=100", max_tokens=200)
    assert second.headers[CACHE] == "hit"
    left = (await gateway.client.get("/v1/key")).json()["budgets"][0]
    assert left["spent"] == first.headers["x-metergate-cost"].split()[0] and left["reserved"] == "0"


@pytest.mark.parametrize("settings", ["valkey"], indirect=True)
async def test_a_frozen_store_is_a_miss_and_holds_nobody_up(gateway: Gateway, valkey: ValkeyServer) -> None:
    await twice(gateway)
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        assert await gateway.services.answers.find(b"x" * 32) is None
    finally:
        valkey.process.send_signal(signal.SIGCONT)
    failed = gateway.services.metrics.registry.get_sample_value("metergate_answer_cache_total", {"result": "failed"})
    assert failed == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=100))
async def test_memory_is_bounded_and_what_is_used_last_stays(steps: list[tuple[int, int]]) -> None:
    store, sizes, order = MemoryAnswers(100), dict[bytes, int](), list[bytes]()
    for number, size in steps:
        key = b"%d" % number
        await store.put(key, b"x" * size, 60.0)
        sizes[key] = size
        order = [each for each in order if each != key] + [key]
        while sum(sizes[each] for each in order) > 100:
            order.pop(0)
        assert [each for each in map(b"%d".__mod__, range(10)) if await store.get(each) is not None] == sorted(order)
        order = sorted(order)  # looking is using


async def test_what_is_too_old_is_not_given() -> None:
    store = MemoryAnswers(100)
    await store.put(b"k", b"v", 0.0)
    assert await store.get(b"k") is None


CAPABLE = """\
providers:
  up: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1"}}
  dead: {{kind: openai, base_url: "http://127.0.0.1:{dead}/v1"}}
models:
  - {{name: media, cache: shared, routes: [{{provider: up, model: up-media}}]}}
  - {{name: lost, cache: shared, fallbacks: [big], routes: [{{provider: dead, model: x}}]}}
  - {{name: limping, cache: team, routes: [{{provider: dead, model: x}}, {{provider: up, model: up-m}}]}}
  - {{name: big, cache: team, routes: [{{provider: up, model: up-m}}]}}
"""


@pytest.fixture
async def capable(tmp_path: Path, up: Upstream, dead_port: int, provisioned: Provisioned) -> AsyncIterator[Gateway]:
    """Models with a cache that hear, draw and fall back."""
    config, database = tmp_path / "gateway.yaml", tmp_path / "metergate.db"
    config.write_text(CAPABLE.format(up=up.port, dead=dead_port))
    shutil.copyfile(provisioned.database, database)
    async with running(load_settings(config, environment(tmp_path, database))) as gateway:
        gateway.use(provisioned)
        yield gateway


async def posted_twice(gateway: Gateway, path: str, headers: dict[str, str], **body: Any) -> list[httpx.Response]:
    answers = []
    for _ in range(2):
        answers.append(await gateway.client.post(path, headers=headers, **body))
        assert answers[-1].status_code == 200, answers[-1].text
        await gateway.settled()
        await gateway.services.answers.find(b"")
    return answers


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
@pytest.mark.parametrize("headers", [{}, {CACHE: "1"}])
async def test_what_a_recording_says_is_never_given_to_a_form(
    capable: Gateway, up: Upstream, path: str, headers: dict[str, str]
) -> None:
    data = {"model": "media", "temperature": "0"}
    for sound in (b"one", b"two"):
        answers = await posted_twice(capable, path, headers, data=data, files={"file": sound})
        assert all(CACHE not in answer.headers for answer in answers)
    assert len(await up.book()) == 4


@pytest.mark.parametrize(
    ("path", "sampled"),
    [
        ("/v1/images/generations", True),
        ("/v1/audio/speech", True),
        ("/v1/chat/completions", True),
        ("/v1/embeddings", False),
        ("/v1/rerank", False),
        ("/v1/moderations", False),
    ],
)
async def test_every_endpoint_that_samples_is_kept_only_where_the_caller_asks(
    capable: Gateway, up: Upstream, path: str, sampled: bool
) -> None:
    """A hit is what the miss was, its kind too; and a temperature makes no picture the same."""
    body: dict[str, Any] = {"model": "media", "prompt": "foxes", "input": "foxes", "documents": ["foxes"]}
    body = {"model": "media", "messages": MESSAGES} if "chat" in path else body
    for temperature in ({}, {"temperature": 0}) if sampled and "chat" not in path else ({},):
        _, second = await posted_twice(capable, path, {}, json=body | temperature)
        assert (CACHE in second.headers) != sampled
    first, second = await posted_twice(capable, path, {CACHE: "1"}, json=body | {"user": "else"})
    assert second.headers[CACHE] == "hit" and second.content == first.content
    assert second.headers["content-type"] == first.headers["content-type"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_another_model_answered_is_not_kept(capable: Gateway, stream: bool) -> None:
    """Another route of the same model is that model still; a hit is always of the model that was asked for."""
    quick = {"x-metergate-no-retry": "1"}
    for model, kept in (("lost", False), ("limping", True), ("big", True)):
        body = {"model": model, "messages": MESSAGES, "temperature": 0, "stream": stream}
        first, second = await posted_twice(capable, "/v1/chat/completions", quick, json=body)
        assert (CACHE in second.headers) == kept
        assert (
            first.headers.get("x-metergate-model")
            == second.headers.get("x-metergate-model")
            == (None if kept else "big")
        )
    key = await capable.admin("/keys", {"team_id": capable.team_id, "name": "few", "models": ["lost"]})
    few = {"authorization": f"Bearer {key['key']}"}
    for headers in ({**quick, **few}, {**quick, "x-metergate-no-fallback": "1"}):
        body = {"model": "lost", "messages": MESSAGES, "temperature": 0, "stream": stream}
        answer = await capable.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code in (502, 503), answer.text
