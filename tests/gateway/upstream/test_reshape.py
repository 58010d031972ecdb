"""Upstreams that answer in the other form than was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.upstream import reshape

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def stream(*chunks: dict[str, Any], done: bool = True) -> bytes:
    events = [b"data: " + json.dumps({**HEAD, **chunk}).encode() + b"\n\n" for chunk in chunks]
    return b"".join([*events, b"data: [DONE]\n\n"] if done else events)


def delta(finish: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


def test_rule_22_a_stream_becomes_one_answer() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    body = stream(
        delta(role="assistant", content=""),
        delta(content="Hel"),
        delta(content="lo", index=1),
        delta("stop", content="lo"),
        delta("stop", index=1),
        {"choices": [], "usage": usage},
    )
    answer = json.loads(reshape.aggregate(body))
    assert answer["object"] == "chat.completion"
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello", "lo"]
    assert answer["usage"] == usage


def test_rule_19_tool_calls_grow_by_their_index() -> None:
    body = stream(
        delta(tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x":"\\'}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": 'u4f60"}'}}, {"index": 1, "id": "b"}]),
        delta("tool_calls"),
    )
    message = json.loads(reshape.aggregate(body))["choices"][0]["message"]
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":"\\u4f60"}'}}
    assert message["tool_calls"] == [first, {"index": 1, "id": "b"}]


@pytest.mark.parametrize("body", [stream(delta(content="a")), stream(), b"data: {\n\n"])
def test_a_stream_without_an_end_is_no_answer(body: bytes) -> None:
    with pytest.raises(reshape.Unreadable):
        reshape.aggregate(body)


def test_an_answer_becomes_a_stream() -> None:
    body = json.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "hi", "tool_calls": [{"id": "a"}]},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 1},
        }
    ).encode()
    first, second, done, _ = reshape.split(body).split(b"\n\n")
    chunk = json.loads(first.removeprefix(b"data: "))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [{"id": "a", "index": 0}],
    }
    assert json.loads(second.removeprefix(b"data: "))["usage"] == {"prompt_tokens": 1}
    assert done == b"data: [DONE]"


@pytest.mark.parametrize("body", [b"<html>", b'{"error":{}}', b"[]"])
def test_something_else_is_no_answer(body: bytes) -> None:
    with pytest.raises(reshape.Unreadable):
        reshape.split(body)
