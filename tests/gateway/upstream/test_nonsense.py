"""Whatever a caller writes is passed on or refused by name; translation makes no mistake of its own out of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.app import SURFACES
from gateway.api.media import FormMedia
from gateway.api.surface import Surface
from gateway.errors import ApiError
from gateway.routing.provider import ADAPTERS, Provider
from gateway.routing.routes import Route
from gateway.settings import ProviderSettings
from gateway.upstream.base import Outgoing
from tests.gateway.upstream.routes import route_to

JUNK: list[Any] = [
    None, 5, -1, 1.5, 1e308, "x", "", True, [], {}, [[]], [{}], [None], {"a": [{}]}, ["x", 5], "\U0001f600",
    [{"type": "function"}], [{"type": "function", "function": {"name": 5}}], [{"role": "user"}],
    [{"role": "tool", "content": "x"}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "robot", "content": ""}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "no"}}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "gopher://x"}}]}],
    [{"role": "user", "content": [{"type": "tool_result"}]}], [{"role": "user", "content": [{"type": "image", "source": {}}]}],
    [{"type": "function_call"}], [{"type": "function_call_output", "output": "x"}], [{"type": "message"}],
]  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "embeddings": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10},
    "count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "speech": {"input": "hi", "voice": "alloy"},
    "images": {"prompt": "hi"},
    "rerank": {"query": "hi", "documents": ["hi"]},
    "moderations": {"input": "hi"},
}
FIELDS = (
    "model messages prompt input instructions max_tokens max_completion_tokens max_output_tokens temperature top_p top_k stop"
    " stop_sequences n seed tools tool_choice parallel_tool_calls response_format reasoning_effort reasoning thinking"
    " output_config text metadata user system include truncation stream stream_options service_tier dimensions"
    " encoding_format x_unknown"
).split()


@pytest.fixture
async def routes() -> list[Route]:
    made = []
    for kind in ADAPTERS:
        settings = ProviderSettings(kind=kind, base_url="http://127.0.0.1:9")  # type: ignore[arg-type]
        provider = Provider(kind, settings)
        made.append(route_to(provider, "m"))
    return made


def sent_or_refused(surface: Surface, body: bytes, route: Route) -> Outgoing | ApiError:
    try:
        call = surface.read(body)
        adapter = route.provider.adapter if call.over is None else call.over(route.provider.adapter)
        return adapter.prepare(call, route, request_id="r", output_cap=None, team_id="t")
    except ApiError as refused:
        return refused


@pytest.mark.parametrize("path", sorted(path for path, each in SURFACES.items() if not isinstance(each, FormMedia)))
async def test_nonsense_in_any_field_is_passed_on_or_a_400(routes: list[Route], path: str) -> None:
    surface, passed = SURFACES[path], 0
    for name in FIELDS:
        for junk in JUNK:
            body = json.dumps({"model": "m", **GOOD[surface.name], name: junk}).encode()
            for route in routes:
                sent = sent_or_refused(surface, body, route)
                if isinstance(sent, ApiError):
                    assert sent.status == 400 and sent.message, (name, junk)
                else:
                    assert isinstance(json.loads(sent.body), dict)
                    passed += 1
    assert passed > 20
