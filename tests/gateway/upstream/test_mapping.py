"""The corners of translation that no SDK test walks into: what one field of a dialect is in another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from billing.usage import Usage
from gateway.dialects import anthropic_from_chat, anthropic_to_chat, gemini_from_chat, responses
from gateway.dialects.anthropic_answers import MessageWriter
from gateway.dialects.chat import CHUNK, raw
from gateway.errors import ApiError

HELLO: list[Any] = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


def fields(body: dict[str, Any]) -> dict[str, Raw]:
    return {name: raw(value) for name, value in body.items()}


def as_chat(**body: Any) -> Any:
    made = anthropic_to_chat.request(fields({"messages": HELLO, **body}))
    return {name: json.loads(bytes(value)) for name, value in made.items()}


def as_anthropic(**body: Any) -> Any:
    return anthropic_from_chat.request(fields({"messages": HELLO, **body}), "m", None)


def as_gemini(**body: Any) -> Any:
    return gemini_from_chat.request(fields({"messages": HELLO, **body}), None)


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False},
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 20000}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "disabled"}}, {}),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh"}),
        ({"metadata": {"user_id": "u"}}, {"user": "u"}),
    ],
)
def test_a_messages_field_in_chat(asked: dict[str, Any], made: dict[str, Any]) -> None:
    expected = {"messages": HELLO, "tools": [FUNCTION], **made}
    assert as_chat(tools=[TOOL], **asked) == expected


def test_system_blocks_become_one_message_and_cache_marks_are_left_out() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    made = as_chat(system=[{"type": "text", "text": "a", **mark}, {"type": "text", "text": "b"}])
    assert made["messages"][0] == {"role": "system", "content": "a\n\nb"}


def test_a_result_with_a_picture_keeps_its_text_in_place_and_the_picture_beside_it() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    content = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    made = as_chat(messages=[{"role": "user", "content": [result]}])["messages"]
    assert made[0] == {"role": "tool", "tool_call_id": "t", "content": "see"}
    assert made[1]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"type": "tool", "name": "f"}),
    ],
)
def test_a_choice_of_tools_in_messages(asked: dict[str, Any], made: dict[str, Any]) -> None:
    assert as_anthropic(tools=[FUNCTION], **asked)["tool_choice"] == made


def test_pictures_by_address_go_to_who_takes_addresses() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]}]
    block = as_anthropic(messages=messages)["messages"][0]["content"][0]
    assert block == {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
    with pytest.raises(ApiError, match="data: URL"):
        as_gemini(messages=messages)


def test_audio_goes_to_who_hears() -> None:
    messages = [{"role": "user", "content": [AUDIO]}]
    part = as_gemini(messages=messages)["contents"][0]["parts"][0]
    assert part == {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}
    with pytest.raises(ApiError, match="hears no audio"):
        as_anthropic(messages=messages)


def test_json_without_a_schema() -> None:
    made = as_gemini(response_format={"type": "json_object"})
    assert made["generationConfig"] == {"responseMimeType": "application/json"}


def test_an_effort_that_does_not_fit_its_maximum_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        as_anthropic(reasoning_effort="high", max_tokens=500)
    assert (refused.value.param, "1280" in refused.value.message) == ("reasoning_effort", True)


def test_turns_of_one_role_are_one_and_results_stand_first() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "user", "content": "two"},
    ]
    turns = as_anthropic(messages=messages)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "text"]


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "P", "schema": {"type": "object"}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "P", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}, {}),
    ],
)
def test_a_responses_field_in_chat(asked: dict[str, Any], made: dict[str, Any]) -> None:
    body = responses.request(fields({"input": "hi", **asked}))
    assert {name: json.loads(bytes(value)) for name, value in body.items()} == {"messages": HELLO, **made}


def test_rule_19_calls_told_in_turns_are_blocks_one_after_the_other() -> None:
    writer = MessageWriter("m")
    out = b""
    for delta in (
        [{"index": 0, "id": "a", "function": {"name": "f"}}, {"index": 1, "id": "b", "function": {"name": "g"}}],
        [{"index": 0, "function": {"arguments": '{"x":'}}],
        [{"index": 1, "function": {"arguments": '{"y":2}'}}, {"index": 0, "function": {"arguments": "1}"}}],
    ):
        chunk = {"choices": [{"index": 0, "delta": {"tool_calls": delta}, "finish_reason": None}]}
        out += writer.chunk(CHUNK.decode(json.dumps(chunk)))
    out += writer.ending(Usage(), None)
    events = [json.loads(line[6:]) for line in out.splitlines() if line.startswith(b"data: ")]
    blocks: dict[int, str] = {}
    opened: list[int] = []
    for event in events:
        if event["type"] == "content_block_start":
            opened.append(event["index"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == opened[-1]
            blocks[event["index"]] = blocks.get(event["index"], "") + event["delta"]["partial_json"]
        elif event["type"] == "content_block_stop":
            assert event["index"] == opened[-1]
    assert {index: json.loads(text) for index, text in blocks.items()} == {0: {"x": 1}, 1: {"y": 2}}
