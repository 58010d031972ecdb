"""Rule 16: every route that can cost money passes the same door. The tests are made from the routes themselves."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.api.app import SURFACES
from tests.gateway.api.conftest import MESSAGES, Gateway, Upstream

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("m", {"messages": MESSAGES, "max_tokens": 4000}),
    "completions": ("m", {"prompt": "Foxes", "max_tokens": 4000}),
    "embeddings": ("open", {"input": "Foxes " * 20_000}),
    "messages": ("m", {"messages": MESSAGES, "max_tokens": 4000}),
    "count_tokens": ("engine", {"messages": MESSAGES}),
    "responses": ("m", {"input": "Foxes", "max_output_tokens": 4000}),
    "speech": ("media", {"input": "Foxes " * 20_000, "voice": "alloy"}),
    "transcriptions": ("media", {"prompt": "Foxes " * 20_000}),
    "translations": ("media", {"prompt": "Foxes " * 20_000}),
    "images": ("media", {"prompt": "Foxes " * 20_000}),
    "rerank": ("media", {"query": "Foxes", "documents": ["Foxes " * 20_000]}),
    "moderations": ("media", {"input": "Foxes " * 20_000}),
}
"""A model that can serve it, and a request whose worst case is more than a fen, for each surface: a new one needs an entry."""
FREE = frozenset({"count_tokens"})
FORMS = frozenset({"transcriptions", "translations"})
PATHS = sorted(SURFACES)


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    name = SURFACES[path].name
    assert name in BODIES, f"{path}: a new surface must say how it is called, so that rule 16 is proven for it"
    model, body = BODIES[name]
    return {"model": model, **body, **fields}


async def post(
    gateway: Gateway, path: str, headers: dict[str, str] | None = None, *, surface: str | None = None, **fields: Any
) -> httpx.Response:
    surface = surface or path
    body = body_of(surface, **fields)
    if SURFACES[surface].name in FORMS:
        sound = {"file": ("a.mp3", b"sound\r\n--no boundary", "audio/mpeg")}
        return await gateway.client.post(path, data=body, files=sound, headers=headers)
    return await gateway.client.post(path, json=body, headers=headers)


def code_or_type(answer: httpx.Response) -> str:
    """The error in the surface's own shape, OpenAI's or Anthropic's."""
    body = answer.json()
    error: dict[str, str] = body["error"]
    if body.get("type") == "error":
        assert set(body) == {"type", "error"} and set(error) == {"type", "message"}
        return error["type"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["type"]


async def test_a_key_is_asked_for_and_a_forbidden_model_refused(gateway: Gateway) -> None:
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "narrow", "models": ["far"]})
    for path in PATHS:
        answer = await post(gateway, path, {"authorization": "Bearer nonsense"})
        assert (answer.status_code, code_or_type(answer)) == (401, "authentication_error"), path
        assert (await post(gateway, path, model="nobody")).status_code == 404, path
        answer = await post(gateway, path, {"authorization": f"Bearer {key['key']}"})
        assert (answer.status_code, code_or_type(answer)) == (403, "permission_error"), path


@pytest.mark.parametrize("path", PATHS)
async def test_limits_and_budgets_are_asked_before_the_provider(
    gateway: Gateway, up: Upstream, motor: Upstream, path: str
) -> None:
    limits = {"requests_per_minute": 1}
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "slow", "limits": limits})
    headers = {"authorization": f"Bearer {key['key']}"}
    first = await post(gateway, path, headers)
    assert first.status_code == 200, first.text
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    refused = await post(gateway, path, headers)
    assert (refused.status_code, code_or_type(refused)) == (429, "rate_limit_error")
    seen = len(await up.book()) + len(await motor.book())
    assert seen == 1
    budget = {"scope": "team", "scope_id": gateway.team_id, "amount": "0.001", "currency": "CNY", "period": "total"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    broke = await post(gateway, path)
    if SURFACES[path].name in FREE:
        assert broke.status_code == 200
    else:
        assert broke.status_code == 402 and broke.headers["x-should-retry"] == "false"
        assert len(await up.book()) + len(await motor.book()) == seen


async def test_every_answer_is_one_row_of_its_surface(gateway: Gateway) -> None:
    for path in PATHS:
        answer = await post(gateway, path, {"x-metergate-tags": "job=a"})
        assert answer.status_code == 200, answer.text
        row = await gateway.row(answer)
        assert (row["surface"], row["status"], row["tags"]) == (SURFACES[path].name, "completed", {"job": "a"})
        assert len(row["attempts"]) == 1
        assert (row["settled"]["amount"] == "0") == (SURFACES[path].name in FREE)
        assert "x-metergate-cost" in answer.headers
    await gateway.settled()
    rows = (await gateway.operator.get("/admin/v1/usage/requests?limit=100")).json()["data"]
    assert sorted(row["surface"] for row in rows) == sorted(SURFACES[path].name for path in PATHS)


async def test_every_surface_is_there_without_the_version_too(gateway: Gateway) -> None:
    for path in PATHS:
        answer = await post(gateway, path.removeprefix("/v1"), surface=path)
        assert answer.status_code == 200, answer.text
    assert (await gateway.client.get("/models")).json() == (await gateway.client.get("/v1/models")).json()
    assert (await gateway.client.get("/models/m")).json()["id"] == "m"


async def test_rule_31_a_bad_body_is_a_400_in_the_surfaces_own_shape(gateway: Gateway) -> None:
    for path in PATHS:
        for content in (b"", b"{", b"[]", b"null", b'{"model":5}', b'{"a":' + b"[" * 100_000 + b"}"):
            answer = await gateway.client.post(path, content=content)
            assert (answer.status_code, code_or_type(answer)) == (400, "invalid_request_error"), (path, content[:20])
