"""The Gemini adapter's own table: counts, failures, addresses, answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from billing.usage import Usage
from gateway.api.chat import ChatCompletions
from gateway.routing.provider import Provider
from gateway.routing.routes import Route
from gateway.settings import ProviderSettings, Secret
from gateway.sse import StreamBroken
from gateway.upstream.base import BadAnswer
from gateway.upstream.gemini import ChatScanner, GeminiAdapter, from_gemini
from tests.gateway.upstream.routes import route_to

KEY = "AIzaSyAbCdEf0123456789xyzW"
ADAPTER = GeminiAdapter()


def call(**fields: Any) -> Any:
    return ChatCompletions().read(
        json.dumps({"model": "named", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    )


@pytest.fixture
async def route() -> Route:
    settings = ProviderSettings(kind="gemini", base_url="http://127.0.0.1:9", api_key=Secret(KEY))
    return route_to(Provider("google", settings), "g-1")


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}, Usage(input=10, output=5)),
        (
            {"promptTokenCount": 100, "cachedContentTokenCount": 90, "candidatesTokenCount": 5},
            Usage(input=10, cache_read=90, output=5),
        ),
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 7},
            Usage(input=10, output=12, reasoning=7),
        ),
        ({"promptTokenCount": 10, "thoughtsTokenCount": 7}, Usage(input=10, output=7, reasoning=7)),
        ({"promptTokenCount": 10, "toolUsePromptTokenCount": 3, "candidatesTokenCount": 1}, Usage(input=13, output=1)),
        (
            {
                "promptTokenCount": 100,
                "cachedContentTokenCount": 40,
                "promptTokensDetails": [
                    {"modality": "TEXT", "tokenCount": 50},
                    {"modality": "AUDIO", "tokenCount": 50},
                ],
                "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 30}],
                "candidatesTokenCount": 9,
                "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 4}],
            },
            Usage(input=40, cache_read=40, audio_input=20, output=5, image_output=4),
        ),
        (
            {"promptTokenCount": 5, "cachedContentTokenCount": 9, "candidatesTokenCount": 1},
            Usage(cache_read=5, output=1, flaw="cachedContentTokenCount is 9, more than 5"),
        ),
        ({"totalTokenCount": 5}, None),
        ({"promptTokenCount": "x"}, None),
    ],
)
def test_rule_01_each_class_is_counted_once(reported: dict[str, Any], usage: Usage | None) -> None:
    assert from_gemini(json.dumps(reported).encode()) == usage


@pytest.mark.parametrize(
    ("base", "root"),
    [
        ("https://g.example", "https://g.example/v1beta"),
        ("https://g.example/v1", "https://g.example/v1"),
        ("https://g.example/v1beta/", "https://g.example/v1beta"),
    ],
)
async def test_addresses(base: str, root: str) -> None:
    provider = Provider("google", ProviderSettings(kind="gemini", base_url=base))
    for model, name in (("g-1", "models/g-1"), ("tunedModels/mine", "tunedModels/mine")):
        route = route_to(provider, model)
        for streamed, method in ((False, "generateContent"), (True, "streamGenerateContent?alt=sse")):
            outgoing = ADAPTER.prepare(call(stream=streamed), route, request_id="r", output_cap=5, team_id="t")
            assert outgoing.url == f"{root}/{name}:{method}"
            assert json.loads(outgoing.body)["generationConfig"] == {"maxOutputTokens": 5}


async def test_parameters_have_googles_names(route: Route) -> None:
    asked = call(
        n=3, seed=7, presence_penalty=0.5, frequency_penalty=-0.5, top_p=0.9, stop=["a", "b"], reasoning_effort="none",
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice={"type": "function", "function": {"name": "f"}},
    )  # fmt: skip
    body = json.loads(ADAPTER.prepare(asked, route, request_id="r", output_cap=None, team_id="t").body)
    assert body["generationConfig"] == {
        "candidateCount": 3,
        "seed": 7,
        "presencePenalty": 0.5,
        "frequencyPenalty": -0.5,
        "topP": 0.9,
        "stopSequences": ["a", "b"],
        "thinkingConfig": {"thinkingBudget": 0, "includeThoughts": False},
    }
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "ANY", "allowedFunctionNames": ["f"]}


@pytest.mark.parametrize(
    ("status", "message", "ours", "code"),
    [
        (400, "Invalid value at 'contents'", 400, None),
        (400, "API key not valid. Please pass a valid API key.", 502, "upstream_auth"),
        (
            400,
            "The input token count (9) exceeds the maximum number of tokens allowed (5)",
            400,
            "context_length_exceeded",
        ),
        (403, "denied", 502, "upstream_auth"),
        (404, "models/x is not found", 502, "upstream_not_found"),
        (429, "Resource has been exhausted", 429, "upstream_rate_limited"),
        (503, "The model is overloaded", 503, "upstream_unavailable"),
    ],
)
async def test_failures(route: Route, status: int, message: str, ours: int, code: str | None) -> None:
    body = json.dumps({"error": {"code": status, "message": f"{message} {KEY}", "status": "X"}}).encode()
    failure = ADAPTER.failure(route.provider, status, None, body)
    assert (failure.error.status, failure.error.code) == (ours, code)
    assert KEY not in failure.error.message


@pytest.mark.parametrize("body", [b"", b"[]", b'{"candidates":5}', b"{}"])
def test_an_answer_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        ADAPTER.read_answer(call(), "application/json", body)


def test_rule_22_a_whole_answer_where_a_stream_was_asked_for_is_its_only_event() -> None:
    body = json.dumps(
        {
            "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2},
        },
        indent=2,
    ).encode()
    scanner = ChatScanner(1)
    out = scanner.feed(ADAPTER.as_events(body)) + scanner.end()
    assert b'"content":"Hi"' in out and b'"finish_reason":"stop"' in out
    assert scanner.finished and from_gemini(scanner.usage or b"") == Usage(input=1, output=2)


def test_a_stream_without_a_reason_is_not_finished_and_a_bad_event_breaks_it() -> None:
    scanner = ChatScanner(1)
    scanner.feed(b'data: {"candidates":[{"content":{"parts":[{"text":"Hi"}]}}]}\r\n\r\n')
    scanner.end()
    assert not scanner.finished
    with pytest.raises(StreamBroken):
        ChatScanner(1).feed(b"data: nonsense\n\n")
