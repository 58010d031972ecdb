"""Tools, structured output and reasoning through the official SDK. One engine repeats the prompt, the other draws by dice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from .running import RunningEngine

MODEL = "tiny-model"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock", "parameters": CLOCK}},
]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}</tool_call>'
FLAGS: dict[str, object] = {
    "enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3",
    "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    "{% if tools %}|{{ tools | length }}{{ tools[0].function.name }}{% endif %}"
    "{% if enable_thinking is false %}<think></think>{% endif %}",
}  # fmt: skip


@pytest.fixture(scope="module")
def parrot(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with RunningEngine(tiny_folder, tmp_path_factory.mktemp("parrot"), server=FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def dice(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with RunningEngine(tiny_folder, tmp_path_factory.mktemp("dice"), core="tests.local_engine.dice") as running:
        yield running


@pytest.fixture
async def thrower(dice: RunningEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False, timeout=30)
    async with openai.AsyncOpenAI(base_url=f"{dice.url}/v1", api_key="none", http_client=http, max_retries=0) as sdk:
        yield sdk


def says(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_a_model_that_calls_is_heard_and_its_template_knows_the_tools(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=says(f"Well.{CALL}"), tools=TOOLS)
    message = answer.choices[0].message
    assert message.content == "Well.|2weather"
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = message.tool_calls or []
    assert call.type == "function" and call.id.startswith("chatcmpl-tool-")
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bonn", "days": 2})


async def test_a_loop_of_tools_goes_round(sdk: openai.AsyncOpenAI) -> None:
    """The model calls, the caller answers the call, the model goes on: what each says is what the other is told."""
    messages = says(CALL)
    first = (await sdk.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)).choices[0].message
    assert first.tool_calls
    messages += [first.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "<rain>"} for call in first.tool_calls]
    second = (await sdk.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)).choices[0]
    assert (second.message.content or "").endswith("<rain>|2weather")
    assert second.finish_reason == "tool_calls", "a parrot says everything again, the call too"


async def test_a_streamed_call_comes_in_pieces_that_join(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(model=MODEL, messages=says(CALL + CALL), tools=TOOLS, stream=True)
    chunks = [chunk async for chunk in stream]
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    for index in (0, 1):
        own = [part.function for part in parts if part.index == index]
        assert own[0] is not None and own[0].name == "weather"
        assert json.loads("".join(part.arguments or "" for part in own if part)) == {"city": "Bonn", "days": 2}
    assert len(parts) > 20
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert content == "|2weather"


async def test_one_call_is_enough_where_parallel_ones_are_not_wanted(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=says(CALL + CALL), tools=TOOLS, parallel_tool_calls=False
    )
    assert len(answer.choices[0].message.tool_calls or []) == 1


async def test_with_tool_choice_none_text_is_text_and_the_template_hears_of_no_tools(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=says(CALL), tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"


async def test_reasoning_comes_apart_from_the_answer(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": says("<think>hm</think>Yes.")}
    whole = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    assert (whole["reasoning_content"], whole["content"]) == ("hm", "Yes.")
    text = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes."
    kept = (await client.post("/v1/chat/completions", json={**body, "include_reasoning": False})).json()
    message = kept["choices"][0]["message"]
    assert message["content"] == "Yes." and "reasoning_content" not in message


@pytest.mark.parametrize(
    ("said", "reasoning", "content"),
    [("<think>{'no', </thin</think>[1,2]", "{'no', </thin", "[1,2]"), ("[1,2]", None, "[1,2]")],
)
async def test_a_grammar_holds_from_the_end_of_reasoning_on(
    client: httpx.AsyncClient, said: str, reasoning: str | None, content: str
) -> None:
    body = {"model": MODEL, "messages": says(said), "guided_json": {"type": "array", "items": {"type": "integer"}}}
    whole = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    assert (whole.get("reasoning_content"), whole["content"]) == (reasoning, content)
    text = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == (reasoning or "")
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert len([delta for delta in deltas if "reasoning_content" in delta]) > 3 or reasoning is None


async def test_with_thinking_switched_off_a_grammar_holds_from_the_first_token_on(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": says("<think>hm</think>[1]"), "guided_json": {"type": "array"}}
    off = {**body, "chat_template_kwargs": {"enable_thinking": False}}
    refused = await client.post("/v1/chat/completions", json=off)
    assert refused.status_code == 500, "the parrot breaks the grammar by thinking"
    assert "grammar cannot go on" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_rule_38_what_only_the_models_tokenizer_can_refuse_is_a_400_too(
    client: httpx.AsyncClient, stream: bool
) -> None:
    body = {"model": MODEL, "messages": says("x"), "stream": stream, "guided_grammar": 'start: "x" <|nobody|>'}
    refused = await client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "unknown special token" in refused.json()["error"]["message"]
    fine = await client.post(
        "/v1/chat/completions", json={**body, "guided_grammar": 'start: "x" <|eot|>', "stream": False}
    )
    assert fine.json()["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_required_call_is_made_with_arguments_that_validate(thrower: openai.AsyncOpenAI, stream: bool) -> None:
    for seed in range(4):
        asked: dict[str, Any] = {"messages": says("go"), "tools": TOOLS, "tool_choice": "required", "seed": seed}
        asked |= {"model": MODEL, "max_tokens": 400, "parallel_tool_calls": False}
        if stream:
            chunks = [chunk async for chunk in await thrower.chat.completions.create(stream=True, **asked)]
            parts = [part.function for c in chunks for part in c.choices[0].delta.tool_calls or [] if part.function]
            name, arguments = parts[0].name, "".join(part.arguments or "" for part in parts)
            finish = chunks[-1].choices[0].finish_reason
        else:
            answer = await thrower.chat.completions.create(**asked)
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.type == "function"
            name, arguments, finish = call.function.name, call.function.arguments, answer.choices[0].finish_reason
        jsonschema.validate(json.loads(arguments), {"weather": PARAMETERS, "clock": CLOCK}[str(name)])
        assert finish == "tool_calls"


async def test_a_named_function_is_called_and_that_is_no_news(thrower: openai.AsyncOpenAI) -> None:
    answer = await thrower.chat.completions.create(
        model=MODEL, messages=says("go"), tools=TOOLS, seed=1, max_tokens=100,
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    assert (call.function.name, answer.choices[0].finish_reason) == ("weather", "stop")


async def test_a_schema_is_kept_by_chat_and_completions_alike(thrower: openai.AsyncOpenAI, dice: RunningEngine) -> None:
    answer = await thrower.chat.completions.create(
        model=MODEL, messages=says("go"), n=3, seed=2, max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "forecast", "schema": PARAMETERS, "strict": True}},
    )  # fmt: skip
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content or ""), PARAMETERS)
        assert choice.finish_reason == "stop"
    async with httpx.AsyncClient(base_url=dice.url, trust_env=False, verify=False, timeout=30) as client:
        body = {"model": MODEL, "prompt": "go", "guided_choice": ["left", "right"], "seed": 1}
        text = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    assert text in ("left", "right")


REFUSED: list[tuple[dict[str, object], str, str]] = [
    ({"tools": TOOLS}, "tool_choice", "needs an engine started with --enable-auto-tool-choice"),
    ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
        "'x', which is not",
    ),
    ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice", "cannot be combined"),
    ({"guided_regex": "a(+"}, "guided_regex", "invalid regex"),
    ({"guided_json": {"type": "strin"}}, "guided_json", "Invalid type: strin"),
    ({"guided_json": "{"}, "guided_json", "cannot be followed"),
    ({"guided_json": "[1]"}, "guided_json", "a JSON schema is an object"),
    ({"guided_choice": []}, "guided_choice", "at least one text"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "cannot be followed"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
    ({"guided_regex": "a", "allowed_token_ids": [3]}, "allowed_token_ids", "cannot be combined"),
    ({"tools": [{"type": "function"}], "tool_choice": "required"}, "function", "Missing required parameter"),
]


@pytest.mark.parametrize(("extra", "param", "words"), REFUSED)
async def test_rule_38_what_cannot_be_followed_is_a_400_that_says_why(
    thrower: openai.AsyncOpenAI, extra: dict[str, object], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await thrower.chat.completions.create(model=MODEL, messages=says("x"), extra_body=extra)
    assert caught.value.param == param
    assert words in caught.value.message
