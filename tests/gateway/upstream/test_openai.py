"""The OpenAI adapter: what goes up, and what a failure becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.chat import ChatCompletions
from gateway.api.completions import Completions
from gateway.api.media import MEDIA
from gateway.api.messages import Messages
from gateway.errors import ApiError
from gateway.routing.provider import ADAPTERS, Provider
from gateway.routing.routes import Route
from gateway.settings import ProviderSettings, Secret
from gateway.upstream import policy
from gateway.upstream.base import Call
from gateway.upstream.engine import EngineAdapter
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.redact import redact
from tests.gateway.upstream.routes import route_to

FORM = (
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--b--\r\n'
)
KEY = "sk-provider-AbCdEf0123456789xyzW"
ADAPTER = OpenAIAdapter()
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def route() -> Route:
    settings = ProviderSettings(kind="openai", base_url="http://127.0.0.1:9/v1", api_key=Secret(KEY))
    provider = Provider("up", settings)
    return route_to(provider, "served-model")


def call(**fields: Any) -> Call:
    return ChatCompletions().read(json.dumps({"model": "named", "messages": MESSAGES, **fields}).encode())


def sent(route: Route, request: Call, cap: int | None = None) -> Any:
    outgoing = ADAPTER.prepare(request, route, request_id="r1", output_cap=cap, team_id="team_a")
    assert outgoing.url == "http://127.0.0.1:9/v1/chat/completions"
    assert outgoing.headers["authorization"] == f"Bearer {KEY}"
    assert outgoing.headers["x-request-id"] == "r1"
    return json.loads(outgoing.body)


async def test_unknown_fields_pass_and_the_model_is_renamed(route: Route) -> None:
    fields = {"temperature": 0.5, "x_new": {"a": [1, 2.50, "\u4f60"]}, "user": "u"}
    assert sent(route, call(**fields)) == {"model": "served-model", "messages": MESSAGES, **fields}


async def test_passed_values_keep_their_bytes(route: Route) -> None:
    body = b'{"model":"named","messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}],"logit_bias":{"1":1.50e0}}'
    outgoing = ADAPTER.prepare(ChatCompletions().read(body), route, request_id="r", output_cap=None, team_id="t")
    assert outgoing.body == body.replace(b'"named"', b'"served-model"')


async def test_rule_17_usage_is_asked_for_and_other_stream_options_stay(route: Route) -> None:
    assert sent(route, call(stream=True))["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "continuous_usage_stats": True}
    assert sent(route, call(stream=True, stream_options=options))["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }
    assert "stream_options" not in sent(route, call())


async def test_a_cap_goes_into_the_field_that_the_caller_named(route: Route) -> None:
    assert sent(route, call(max_completion_tokens=900), 500)["max_completion_tokens"] == 500
    assert sent(route, call(max_tokens=900), 500)["max_tokens"] == 500
    assert sent(route, call(), 500)["max_tokens"] == 500
    assert "max_tokens" not in sent(route, call())


async def test_of_two_equal_names_the_one_that_was_checked_is_sent(route: Route) -> None:
    body = b'{"model":"first","model":"named","messages":[{}],"max_tokens":1,"max_tokens":2}'
    request = ChatCompletions().read(body)
    assert (request.model, request.output_cap) == ("named", 2)
    outgoing = ADAPTER.prepare(request, route, request_id="r", output_cap=None, team_id="t")
    assert outgoing.body == b'{"model":"served-model","messages":[{}],"max_tokens":2}'


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True},
        {"models": ["other"]},
        {"web_search_options": {"search_context_size": "high"}},
        {"priority": 5},
        {"service_tier": "priority"},
        {"tools": [{"type": "web_search"}]},
        {"tools": "all"},
        {"cache_salt": 5},
    ],
)
async def test_rule_32d_fields_that_cost_or_keep_state_are_refused_by_name(
    route: Route, fields: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        sent(route, call(**fields))
    assert refused.value.status == 400
    assert refused.value.param == next(iter(fields))


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
async def test_rule_32d_no_provider_is_told_what_costs_or_keeps_state_and_only_nothing_is_nothing(kind: str) -> None:
    """An empty object asks for something: `web_search_options: {}` is a search."""
    settings = ProviderSettings(kind=kind, base_url="http://127.0.0.1:9/v1")  # type: ignore[arg-type]
    provider = Provider("p", settings)
    route = route_to(provider, "m")

    def prepare(**fields: Any) -> Any:
        asked = call(**fields)
        body = provider.adapter.prepare(asked, route, request_id="r", output_cap=9, team_id="t").body
        return json.loads(body)

    for name in sorted({*policy.REFUSED, "prompt_cache_retention"}):
        for value in ({}, {"a": 1}, "x", True, 7, 0, ["x"]):
            with pytest.raises(ApiError, match=f"'{name}'") as refused:
                prepare(**{name: value})
            assert (refused.value.status, refused.value.code) == (400, "unsupported_field")
        assert prepare(**{name: None})
    nothing: tuple[Any, ...] = (None, False, [])
    for trivial in nothing:
        assert prepare(web_search_options=trivial)
    extras: list[Any] = [{"google": {"cached_content": "c"}}, {"anything": {}}, {"google": {}, "max_tokens": {}}]
    for extra in extras:
        with pytest.raises(ApiError, match="'extra_body'"):
            prepare(extra_body=extra)


async def test_rule_32d_what_googles_compatible_endpoint_takes_beside_passes(route: Route) -> None:
    extra = {"google": {"thinking_config": {"thinking_budget": 100}}}
    assert sent(route, call(extra_body=extra, prompt_cache_retention="in_memory"))["extra_body"] == extra


@pytest.mark.parametrize("name", sorted(policy.REFUSED))
async def test_rule_32d_messages_that_pass_untouched_are_looked_at_too(name: str) -> None:
    settings = ProviderSettings(kind="anthropic", base_url="http://127.0.0.1:9/v1")
    provider = Provider("p", settings)
    route = route_to(provider, "m")
    body = {"model": "named", "max_tokens": 9, "messages": MESSAGES, name: {}}
    asked = Messages().read(json.dumps(body).encode())
    with pytest.raises(ApiError, match=f"'{name}'"):
        provider.adapter.prepare(asked, route, request_id="r", output_cap=9, team_id="t")


async def test_rule_32d_store_is_overwritten_and_a_salt_is_the_teams(route: Route) -> None:
    body = sent(route, call(store=True, cache_salt="mine", service_tier="auto", background=False))
    assert (body["store"], body["cache_salt"], body["service_tier"]) == (False, "team_a/mine", "auto")
    tools = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}]
    assert sent(route, call(tools=tools))["tools"] == tools


async def test_an_engine_keeps_each_teams_prefixes_apart_unless_told_to_share() -> None:
    def salt(team_id: str, *, share: bool = False, **fields: Any) -> Any:
        settings = ProviderSettings(kind="engine", base_url="http://127.0.0.1:9", share_prefix_cache=share)
        route = route_to(Provider("up", settings), "m")
        outgoing = EngineAdapter().prepare(call(**fields), route, request_id="r", output_cap=None, team_id=team_id)
        return json.loads(outgoing.body).get("cache_salt")

    assert (salt("team_a"), salt("team_b")) == ("team_a/", "team_b/")
    assert salt("team_b", cache_salt="team_a/") == "team_b/team_a/"
    assert salt("team_a", share=True) is None


def failed(route: Route, status: int, body: object, retry_after: float | None = None) -> Any:
    return ADAPTER.failure(route.provider, status, retry_after, json.dumps(body).encode())


@pytest.mark.parametrize("status", [401, 403, 402])
async def test_rule_32e_a_providers_credentials_problem_is_a_502_in_our_words(route: Route, status: int) -> None:
    failure = failed(route, status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    assert failure.error.status == 502
    assert KEY[:9] not in failure.error.message and "up" in failure.error.message
    assert failure.retryable and failure.blames_route


async def test_rule_23_insufficient_quota_is_no_rate_limit(route: Route) -> None:
    quota = failed(route, 429, {"error": {"message": "quota", "code": "insufficient_quota"}})
    assert (quota.error.status, quota.error.code, quota.retry_after_s) == (502, "upstream_quota", 300.0)
    limited = failed(route, 429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 7.5)
    assert (limited.error.status, limited.error.headers["retry-after"], limited.retry_after_s) == (429, "8", 7.5)


async def test_rule_27_a_key_that_a_providers_error_quotes_is_masked(route: Route) -> None:
    failure = failed(route, 400, {"error": {"message": f"bad field for {KEY} ({KEY[-8:]})", "param": "n", "code": "x"}})
    assert failure.error.message == "bad field for *** (***)"
    assert (failure.error.status, failure.error.param, failure.error.code) == (400, "n", "x")
    assert not failure.retryable and not failure.blames_route


async def test_context_overflow_keeps_the_providers_numbers(route: Route) -> None:
    words = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8500 in, 500 out)."
    failure = failed(route, 400, {"error": {"message": words, "type": "BadRequestError", "code": 400}})
    assert (failure.error.message, failure.error.code) == (words, "context_length_exceeded")


@pytest.mark.parametrize(("status", "ours"), [(500, 502), (502, 502), (503, 503), (504, 504), (404, 502), (302, 502)])
async def test_other_failures(route: Route, status: int, ours: int) -> None:
    assert failed(route, status, {"error": "x"}).error.status == ours


def test_anything_that_looks_like_a_key_is_masked() -> None:
    assert redact("token sk-proj-abcdefgh12345 and AIzaSyA1234567890abc", []) == "token *** and ***"
    assert redact("the quick brown fox", []) == "the quick brown fox"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": "many"}, "max_completion_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 5}, "stream_options"),
        ({"model": 5}, "model"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        call(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"model":"m","messages":[{"content":"\xff"}]}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","messages":[{}],"temperature":1e999}',
        b'{"model":"m","messages":[{}],"seed":1' + b"0" * 5000 + b"}",
    ],
)
def test_rule_31_bad_deep_or_huge_json_is_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        ChatCompletions().read(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("hi", 2), (["a", "b", "c"], 6), ([1, 2, 3], 2), ([[1, 2], [3]], 4)],
)
def test_prompts_of_a_completion_are_counted(prompt: object, choices: int) -> None:
    request = Completions().read(json.dumps({"model": "m", "prompt": prompt, "n": 2, "best_of": 3}).encode())
    assert (request.choices, request.generated) == (choices, choices // 2 * 3)


async def test_azures_older_form_has_the_deployment_in_its_path_and_the_key_in_its_own_header() -> None:
    settings = ProviderSettings(
        kind="openai", base_url="https://mine.openai.azure.com/", api_key=Secret(KEY), api_version="2024-10-21"
    )
    route = route_to(Provider("azure", settings), "my deployment")
    outgoing = route.provider.adapter.prepare(call(), route, request_id="r", output_cap=None, team_id="t")
    path = "/openai/deployments/my%20deployment/chat/completions?api-version=2024-10-21"
    assert outgoing.url == f"https://mine.openai.azure.com{path}"
    assert outgoing.headers["api-key"] == KEY and "authorization" not in outgoing.headers
    heard = next(each for each in MEDIA if each.name == "transcriptions").read(FORM)
    assert heard.over is not None
    sound = heard.over(route.provider.adapter).prepare(heard, route, request_id="r", output_cap=None, team_id="t")
    assert "/deployments/my%20deployment/audio/transcriptions?api-version=" in sound.url
