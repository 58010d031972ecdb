"""Errors on the caller's paths: always OpenAI's four fields, never a key, never a trace."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

from tests.gateway.api.conftest import CHAT, MESSAGES, PROVIDER_KEY, Gateway, Upstream


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/", 405),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("PUT", "/health/live", 405),
    ],
)
async def test_paths_and_methods(gateway: Gateway, method: str, path: str, status: int) -> None:
    answer = await gateway.client.request(method, path)
    assert answer.status_code == status
    error_of(answer)
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("key", ["", "Bearer nonsense", "Bearer sk-mg-aaaaaaaaaaaaaaaa-bbbb", "Basic abc"])
async def test_a_wrong_key_is_a_401(gateway: Gateway, key: str) -> None:
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/key")):
        answer = await gateway.client.request(method, path, headers={"authorization": key}, content=b"{")
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "invalid_json"), (b"{", "invalid_json"), (b"[" * 100_000, "invalid_json"), (b"[]", "invalid_json")],
)
async def test_rule_31_a_bad_body_is_a_400(gateway: Gateway, content: bytes, code: str) -> None:
    answer = await gateway.client.post(CHAT, content=content)
    assert answer.status_code == 400
    assert error_of(answer)["code"] == code


async def test_rule_31_a_body_over_the_limit_is_refused_plain_chunked_or_inflated(gateway: Gateway) -> None:
    big = b"x" * 200_001

    async def pieces() -> Any:
        for _ in range(5):
            yield b"x" * 50_000

    for answer in (
        await gateway.client.post(CHAT, content=big),
        await gateway.client.post(CHAT, content=pieces()),
        await gateway.client.post(CHAT, content=gzip.compress(big), headers={"content-encoding": "gzip"}),
    ):
        assert answer.status_code == 413
        error_of(answer)


@pytest.mark.parametrize(("encoding", "status"), [("br", 415), ("gzip", 400)])
async def test_an_encoding_that_cannot_be_read(gateway: Gateway, encoding: str, status: int) -> None:
    answer = await gateway.client.post(CHAT, content=b"{}", headers={"content-encoding": encoding})
    assert answer.status_code == status
    error_of(answer)


async def test_an_unknown_model_is_a_404_and_a_forbidden_one_a_403(gateway: Gateway) -> None:
    unknown = await gateway.chat(model="nobody")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "narrow", "models": ["open"]})
    headers = {"authorization": f"Bearer {key['key']}"}
    forbidden = await gateway.chat(headers=headers)
    assert (forbidden.status_code, error_of(forbidden)["code"]) == (403, "model_not_allowed")
    assert (await gateway.chat(model="open", headers=headers)).status_code == 200
    listed = (await gateway.client.get("/v1/models", headers=headers)).json()["data"]
    assert [model["id"] for model in listed] == ["open"]
    one = await gateway.client.get("/v1/models/m", headers=headers)
    assert (one.status_code, error_of(one)["code"]) == (403, "model_not_allowed")


async def test_a_prompt_that_cannot_fit_is_refused_with_the_numbers(gateway: Gateway, up: Upstream) -> None:
    answer = await gateway.chat(messages=[{"role": "user", "content": "word " * 30_000}], max_tokens=50)
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["code"] == "context_length_exceeded"
    assert "8192" in error["message"] and "50 for the output" in error["message"]
    assert await up.book() == []


async def test_a_refused_request_opens_no_row(gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.chat(model="nobody")
    assert gateway.services.journal.in_flight == 0
    answer = await gateway.chat()
    assert (await gateway.only_row())["id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ("status=401", 502, "upstream_auth"),
        ("status=403", 502, "upstream_auth"),
        ("status=402", 502, "upstream_quota"),
        ("status=429;code=insufficient_quota", 502, "upstream_quota"),
        ("status=404", 502, "upstream_not_found"),
        ("status=400", 400, "scripted"),
        ("status=422", 422, "scripted"),
        ("status=429;retry_after=60", 429, "upstream_rate_limited"),
        ("status=503;retry_after=60", 503, "upstream_unavailable"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_rule_21_27_32e_a_providers_refusal_is_plain_json_that_quotes_no_key(
    gateway: Gateway, script: str, status: int, code: str, stream: bool
) -> None:
    answer = await gateway.chat(f"{script};quote={PROVIDER_KEY}", stream=stream, headers={"x-metergate-no-retry": "1"})
    assert answer.status_code == status
    assert error_of(answer)["code"] == code
    everything = answer.text + str(answer.headers)
    assert (
        PROVIDER_KEY not in everything and PROVIDER_KEY[-8:] not in everything and PROVIDER_KEY[:12] not in everything
    )
    assert "x-secret-header" not in answer.headers
    row = await gateway.row(answer)
    assert row["status"] == "failed" and row["tokens"].get("input", 0) == 0
    assert row["settled"] == {"amount": "0", "currency": "CNY"}
    assert PROVIDER_KEY not in json.dumps(row)
    assert len(row["attempts"]) == 1


async def test_a_limit_is_a_429_with_its_headers(gateway: Gateway, up: Upstream) -> None:
    limits = {"requests_per_minute": 2}
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "slow", "limits": limits})
    headers = {"authorization": f"Bearer {key['key']}"}
    first = await gateway.chat(headers=headers)
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    await gateway.chat(headers=headers)
    refused = await gateway.chat(headers=headers)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert len(await up.book()) == 2


async def test_rule_32d_what_cannot_be_passed_is_refused_before_anything_is_reserved(
    gateway: Gateway, up: Upstream
) -> None:
    answer = await gateway.client.post(CHAT, json={"model": "m", "messages": MESSAGES, "background": True})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "background")
    assert await up.book() == []
    await gateway.settled()


@pytest.mark.interpreted
async def test_our_own_mistake_shows_no_trace(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(gateway.services.admission, "admit", broken)
    answer = await gateway.chat()
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal_error"
    assert "secret" not in answer.text and "Traceback" not in answer.text
