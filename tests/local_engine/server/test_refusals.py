"""Bad input gets a clear 400 in OpenAI's shape and the engine lives on (rules 38, 39, 41)."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from local_engine.server.requests import _REFUSED

from .running import ROOT

MODEL = "tiny-model"
USAGE = {"include_usage": True}
HELLO = [{"role": "user", "content": "hi"}]


async def refused(client: httpx.AsyncClient, path: str, body: object, status: int = 400) -> dict[str, object]:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


@pytest.mark.parametrize(
    ("extra", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "temperature must be in [0, 100], got -1."),
        ({"temperature": "hot"}, "temperature", "Invalid value for 'temperature': Expected `float | null`, got `str`."),
        ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0."),
        ({"n": 0}, "n", "n must be in [1, 128], got 0."),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0."),
        (
            {"max_completion_tokens": -5},
            "max_completion_tokens",
            "max_completion_tokens must be in [1, 2147483647], got -5.",
        ),
        ({"stop": ["a", ""]}, "stop", "stop cannot contain an empty string."),
        ({"logit_bias": {"x": 1}}, "logit_bias", "logit_bias takes token ids as keys, got 'x'."),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "token id 9999 in logit_bias is out of vocabulary (0..259)."),
        ({"stop_token_ids": [260]}, "stop_token_ids", "token id 260 in stop_token_ids is out of vocabulary (0..259)."),
        (
            {"seed": 1 << 64},
            "seed",
            "seed must be in [-9223372036854775808, 18446744073709551615], got 18446744073709551616.",
        ),
        ({"priority": 3}, "priority", "priority needs an engine started with --scheduling-policy priority."),
        ({"stream_options": {}}, "stream_options", "stream_options is allowed only when stream is true."),
        ({"frobnicate": 1}, "frobnicate", "Unknown parameter: 'frobnicate'."),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x", "Unknown parameter: 'stream_options.x'."),
        ({"audio": {}}, "audio", "audio is not supported: this engine has no audio yet."),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "Invalid value for 'response_format.type': Invalid enum value 'xml'.",
        ),
    ],
)
async def test_rule_38_a_parameter_is_honoured_or_refused_by_name(
    client: httpx.AsyncClient, extra: dict[str, object], param: str, message: str
) -> None:
    error = await refused(client, "/v1/chat/completions", {"model": MODEL, "messages": HELLO, **extra})
    assert error["param"] == param
    assert error["message"] == message
    assert error["type"] == "invalid_request_error"


def test_the_readme_lists_every_parameter_that_is_refused() -> None:
    readme = (ROOT / "local_engine" / "README.md").read_text()
    assert [name for name in _REFUSED if f"`{name}`" not in readme] == []


async def test_values_that_ask_for_nothing_pass(client: httpx.AsyncClient) -> None:
    body = {
        "model": MODEL,
        "messages": HELLO,
        "tools": None,
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logprobs": False,
        "structured_outputs": {},
        "user": "someone",
        "store": False,
        "max_tokens": None,
        "metadata": {"a": "b"},
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text


async def test_rule_39_a_prompt_too_long_says_limit_prompt_and_output(client: httpx.AsyncClient) -> None:
    long = [{"role": "user", "content": "x" * 600}]
    error = await refused(client, "/v1/chat/completions", {"model": MODEL, "messages": long, "max_tokens": 20})
    assert error == {
        "message": "This model's maximum context length is 512 tokens. However, you requested 620 tokens "
        "(600 in the messages, 20 in the completion). Please reduce the length of the messages or completion.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    error = await refused(client, "/v1/completions", {"model": MODEL, "prompt": "x" * 500, "max_tokens": 13})
    assert error["code"] == "context_length_exceeded"
    assert "you requested 513 tokens (500 in the prompt, 13 in the completion)" in str(error["message"])


@pytest.mark.parametrize("extra", [{}, {"max_tokens": 1}, {"max_tokens": None}])
@pytest.mark.parametrize("stream", [False, True])
async def test_rule_39_a_prompt_one_short_of_the_context_completes_with_one_token(
    client: httpx.AsyncClient, extra: dict[str, object], stream: bool
) -> None:
    whole = {"model": MODEL, "prompt": "x" * 511, **extra}
    if stream:
        answer = await client.post("/v1/completions", json={**whole, "stream": True, "stream_options": USAGE})
        usage = json.loads(answer.text.strip().splitlines()[-3].removeprefix("data: "))["usage"]
    else:
        answer = await client.post("/v1/completions", json=whole)
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        usage = answer.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (511, 1)


async def test_a_completion_without_max_tokens_is_sixteen_or_what_the_context_leaves(client: httpx.AsyncClient) -> None:
    for prompt, tokens in (("x" * 100, 16), ("x" * 505, 7)):
        answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
        assert answer.json()["usage"]["completion_tokens"] == tokens


async def test_rule_39_without_max_tokens_the_context_is_filled(client: httpx.AsyncClient) -> None:
    fits = [{"role": "user", "content": "x" * 511}]
    answer = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": fits})
    assert answer.json()["usage"]["completion_tokens"] == 1
    over = [{"role": "user", "content": "x" * 512}]
    error = await refused(client, "/v1/chat/completions", {"model": MODEL, "messages": over})
    assert error["message"] == (
        "This model's maximum context length is 512 tokens. However, your messages resulted in 512 tokens. "
        "Please reduce the length of the messages."
    )


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], ["a", ""], [1, "a"], [[1], 2], [True], [[300]], [-1], {}, 7])
async def test_rule_39_an_empty_or_impossible_prompt_is_refused(client: httpx.AsyncClient, prompt: object) -> None:
    error = await refused(client, "/v1/completions", {"model": MODEL, "prompt": prompt})
    assert error["param"] == "prompt"


async def test_rule_41_a_refusing_template_is_quoted(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(model=MODEL, messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}])
    assert caught.value.body == {
        "message": "Roles here are system, user and assistant, not tool",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "chat_template_error",
    }


async def test_an_unknown_model_is_a_404(client: httpx.AsyncClient) -> None:
    error = await refused(client, "/v1/chat/completions", {"model": "gpt-9", "messages": HELLO}, 404)
    assert error["code"] == "model_not_found"
    assert error["message"] == "The model `gpt-9` does not exist; this engine serves tiny-model."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "The request body is not valid JSON"),
        (b"[]", "The request body must be a JSON object."),
        (b'{"model": "tiny-model"}', "Missing required parameter: 'messages'."),
        (b'{"messages": ' + b"[" * 100_000, "The request body is"),
        (b'{"model": "tiny-model", "messages": []}', "messages must hold at least one message."),
        (b'{"model": "tiny-model", "messages": [1]}', "Invalid value for 'messages[0]'"),
        (b"\xff\xfe", "The request body is not valid JSON"),
    ],
)
async def test_rule_31_a_broken_body_is_a_400(client: httpx.AsyncClient, data: bytes, message: str) -> None:
    answer = await client.post("/v1/chat/completions", content=data)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([1], "messages[0]"),
        ([None], "messages[0]"),
        (["hi"], "messages[0]"),
        ([[]], "messages[0]"),
        ([*HELLO, None], "messages[1]"),
        ("hi", "messages"),
        ({}, "messages"),
        (1, "messages"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
        ([{"role": "user", "content": [1]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{}], "messages[0].role"),
    ],
)
async def test_rule_31_what_is_wrong_in_messages_is_named_by_its_place(
    client: httpx.AsyncClient, path: str, messages: object, param: str
) -> None:
    error = await refused(client, path, {"model": MODEL, "messages": messages})
    assert error["param"] == param
    assert param in str(error["message"])


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/nothing")).status_code == 404
    wrong = await client.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    unknown = await client.post("/v1/requests/no-such/cancel")
    assert unknown.json()["error"]["code"] == "request_not_found"


async def test_nan_logits_fail_that_request_alone(client: httpx.AsyncClient) -> None:
    error = await refused(client, "/v1/completions", {"model": MODEL, "prompt": [259, 1]}, 500)
    assert "NaN" in str(error["message"])
    good = await client.post("/v1/completions", json={"model": MODEL, "prompt": "ok"})
    assert good.json()["choices"][0]["text"] == "ok"
