"""The Anthropic adapter's own table: counts, failures, answers that come the other way."""

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
from gateway.upstream.anthropic import AnthropicAdapter
from gateway.upstream.anthropic_stream import ChatScanner
from gateway.upstream.anthropic_usage import from_anthropic, merge_usage, partial_usage
from gateway.upstream.base import BadAnswer
from tests.gateway.upstream.routes import route_to

KEY = "sk-ant-AbCdEf0123456789xyzW"
ADAPTER = AnthropicAdapter()
CALL = ChatCompletions().read(b'{"model":"named","messages":[{"role":"user","content":"hi"}]}')


@pytest.fixture
async def route() -> Route:
    settings = ProviderSettings(kind="anthropic", base_url="http://127.0.0.1:9", api_key=Secret(KEY))
    return route_to(Provider("claude", settings), "served")


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"input_tokens": 10, "output_tokens": 5}, Usage(input=10, output=5)),
        (
            {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 40},
            Usage(input=10, output=5, cache_read=90, cache_write_5m=40),
        ),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_creation_input_tokens": 40,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 30},
            },
            Usage(input=1, output=2, cache_write_5m=10, cache_write_1h=30),
        ),
        (
            {"input_tokens": 1, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}},
            Usage(input=1, output=9, reasoning=4),
        ),
        (
            {"input_tokens": 1, "output_tokens": 2, "server_tool_use": {"web_search_requests": 3}},
            Usage(input=1, output=2, web_search=3),
        ),
        ({"input_tokens": -4, "output_tokens": 2}, Usage(output=2, flaw="input_tokens is -4")),
        ({}, None),
        ({"input_tokens": "many"}, None),
    ],
)
def test_rule_01_each_class_is_counted_once(reported: dict[str, Any], usage: Usage | None) -> None:
    assert from_anthropic(json.dumps(reported).encode()) == usage


def test_rule_02_the_last_value_that_is_not_null_wins_field_by_field() -> None:
    merged = merge_usage(
        b'{"input_tokens":7,"output_tokens":1,"cache_read_input_tokens":3}',
        b'{"output_tokens":50,"cache_read_input_tokens":null,"input_tokens":null}',
    )
    assert from_anthropic(merged) == Usage(input=7, output=50, cache_read=3)


async def test_a_base_url_may_have_or_leave_out_the_version(route: Route) -> None:
    for base, url in (
        ("https://a.example", "https://a.example/v1/messages"),
        ("https://a.example/v1/", "https://a.example/v1/messages"),
        ("https://a.example/proxy", "https://a.example/proxy/v1/messages"),
    ):
        provider = Provider("claude", ProviderSettings(kind="anthropic", base_url=base))
        assert provider.url("/messages") == url
    outgoing = ADAPTER.prepare(CALL, route, request_id="r1", output_cap=None, team_id="t")
    assert outgoing.headers["x-api-key"] == KEY and "authorization" not in outgoing.headers
    assert json.loads(outgoing.body)["max_tokens"] == 4096


@pytest.mark.parametrize(
    ("status", "kind", "message", "ours", "code"),
    [
        (400, "invalid_request_error", "max_tokens: too large", 400, None),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 250000 tokens > 200000 maximum",
            400,
            "context_length_exceeded",
        ),
        (401, "authentication_error", "invalid x-api-key", 502, "upstream_auth"),
        (403, "permission_error", "no", 502, "upstream_auth"),
        (404, "not_found_error", "model: x", 502, "upstream_not_found"),
        (429, "rate_limit_error", "slow down", 429, "upstream_rate_limited"),
        (500, "api_error", "oops", 502, "upstream_error"),
        (529, "overloaded_error", "Overloaded", 503, "upstream_unavailable"),
    ],
)
async def test_failures(route: Route, status: int, kind: str, message: str, ours: int, code: str | None) -> None:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": f"{message} {KEY}"}}).encode()
    failure = ADAPTER.failure(route.provider, status, None, body)
    assert (failure.error.status, failure.error.code) == (ours, code)
    assert KEY not in failure.error.message
    assert failure.retryable == (ours not in (400,))


async def test_an_overload_inside_a_stream_is_a_503(route: Route) -> None:
    failure = ADAPTER.in_band_failure(route.provider, b'{"type":"overloaded_error","message":"Overloaded"}')
    assert (failure.error.status, failure.retryable) == (503, True)


def test_rule_22_a_whole_message_where_a_stream_was_asked_for_becomes_one() -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "model": "served",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 4, "output_tokens": 6},
    }
    scanner = ChatScanner()
    out = scanner.feed(ADAPTER.as_events(json.dumps(message).encode())) + scanner.end()
    deltas = [json.loads(event[6:])["choices"][0] for event in out.split(b"\n\n") if event]
    assert [choice["delta"].get("content") for choice in deltas if "content" in choice["delta"]] == ["Hi"]
    arguments = "".join(
        call["function"]["arguments"] for choice in deltas for call in choice["delta"].get("tool_calls", [])
    )
    assert json.loads(arguments) == {"a": 1}
    assert deltas[-1]["finish_reason"] == "tool_calls" and scanner.done
    assert ADAPTER.usage(scanner.usage or b"") == Usage(input=4, output=6)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"content":5}', b'{"id":"x"}', b"data: {}"])
def test_an_answer_that_is_none_is_no_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        ADAPTER.read_answer(CALL, "application/json", body)


@pytest.mark.parametrize("event", [b"data: {\n\n", b"data: []\n\n", b'data: {"type":5}\n\n', b'data: {"index":0}\n\n'])
def test_an_event_that_is_none_breaks_the_stream(event: bytes) -> None:
    with pytest.raises(StreamBroken):
        ChatScanner().feed(event)


def test_rule_18_a_stream_cut_into_any_reads_gives_the_same_chunks() -> None:
    events = ADAPTER.as_events(
        json.dumps(
            {"id": "m", "content": [{"type": "text", "text": "\u4f60\u597d"}], "stop_reason": "end_turn", "usage": {}}
        ).encode()
    )
    for text in (events, events.replace(b"\n", b"\r\n"), events.replace(b"\n", b"\r")):
        whole = ChatScanner()
        expected = whole.feed(text) + whole.end()
        for step in (1, 2, 7, 64):
            scanner = ChatScanner()
            scanner.writer.created = whole.writer.created
            out = b"".join(scanner.feed(text[at : at + step]) for at in range(0, len(text), step)) + scanner.end()
            assert out == expected and scanner.done


def test_the_served_tier_is_told() -> None:
    body = {"id": "m", "content": [], "usage": {"input_tokens": 1, "output_tokens": 1, "service_tier": "priority"}}
    answer = ADAPTER.read_answer(CALL, "application/json", json.dumps(body).encode())
    assert answer.service_tier == "priority"


@pytest.mark.parametrize(
    "damaged", [b'{"input_tokens":1,"\xe4":2}', b'{"input_tokens":1,"a":"\xff', b"[1]", b"[" * 100_000]
)
def test_a_usage_that_cannot_be_read_is_none_or_a_broken_stream_and_no_other_error(damaged: bytes) -> None:
    assert partial_usage(damaged, 3) is None
    with pytest.raises(StreamBroken):
        merge_usage(damaged, b"{}")
