"""An upstream that answers the other way: a stream where a whole answer was asked for, or the reverse."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.sse import payload_of
from gateway.upstream.shapes import NULL, given

_EVENT_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_any = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode


class Unreadable(Exception):
    """The body is neither what was asked for nor something that can be made into it."""


def aggregate(body: bytes) -> bytes:
    """One JSON answer out of a whole event stream (chat or text completions). Raises `Unreadable`."""
    head: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    usage: Any = None
    for event in _EVENT_END.split(body):
        data = payload_of(event)
        if not data or data == b"[DONE]":
            continue
        try:
            chunk = _any.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable("the provider sent a stream whose events are no JSON") from error
        if chunk.get("error"):
            return _encode({"error": chunk["error"]})
        usage = chunk.get("usage") or usage
        head = {**{k: v for k, v in chunk.items() if k not in ("choices", "usage") and v is not None}, **head}
        for choice in chunk.get("choices") or []:
            _add(choices.setdefault(int(choice.get("index", 0)), {"index": int(choice.get("index", 0))}), choice)
    if not choices or not all(choice.get("finish_reason") for choice in choices.values()):
        raise Unreadable("the provider sent a stream that ends before its answer does")
    if head.get("object") == "chat.completion.chunk":
        head["object"] = "chat.completion"
    return _encode({**head, "choices": [choices[index] for index in sorted(choices)], "usage": usage})


def _add(into: dict[str, Any], choice: dict[str, Any]) -> None:
    for name, value in choice.items():
        if name == "delta":
            _merge(into.setdefault("message", {"role": "assistant", "content": None}), value or {})
        elif name == "text":
            into["text"] = into.get("text", "") + (value or "")
        elif name == "logprobs" and value:
            _merge(into.setdefault("logprobs", {}), value)
        elif value is not None or name not in into:
            into[name] = value


def _merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    """Strings and lists grow, tool calls by their index, everything else is replaced."""
    for name, value in delta.items():
        old = into.get(name)
        if name == "tool_calls":
            into["tool_calls"] = _merge_calls(old or [], value or [])
        elif _grows(name, old, value):
            into[name] = old + value
        elif isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif value is not None or name not in into:
            into[name] = value


def _grows(name: str, old: Any, value: Any) -> bool:
    if isinstance(value, list):
        return isinstance(old, list)
    return isinstance(value, str) and isinstance(old, str) and name not in ("role", "id", "type", "name")


def _merge_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for delta in deltas:
        index = delta.get("index", len(calls))
        place = next((call for call in calls if call.get("index") == index), None)
        if place is None:
            place = {"index": index}
            calls.append(place)
        _merge(place, {k: v for k, v in delta.items() if k != "index"})
    return calls


class _Whole(msgspec.Struct):
    choices: list[dict[str, Raw]] | None = None
    usage: Raw = NULL


_whole = msgspec.json.Decoder(_Whole)
_fields = msgspec.json.Decoder(dict[str, Raw])


def split(body: bytes) -> bytes:
    """A whole answer as a stream: one chunk per choice with everything in it, the usage chunk, `[DONE]`.

    Raises `Unreadable` when the body is no answer.
    """
    try:
        fields = _fields.decode(body)
        whole = _whole.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable("the provider's answer is no JSON") from error
    if whole.choices is None:
        raise Unreadable("the provider's answer has no choices")
    fields.pop("usage", None)
    if bytes(fields.get("object", b"")) == b'"chat.completion"':
        fields["object"] = Raw(b'"chat.completion.chunk"')
    events = []
    for choice in whole.choices:
        if "message" in choice:
            choice["delta"] = _indexed(choice.pop("message"))
        fields["choices"] = Raw(_encode([choice]))
        events.append(b"data: " + _encode(fields) + b"\n\n")
    if given(whole.usage):
        fields["choices"] = Raw(b"[]")
        events.append(b"data: " + _encode({**fields, "usage": whole.usage}) + b"\n\n")
    return b"".join([*events, b"data: [DONE]\n\n"])


def _indexed(message: Raw) -> Raw:
    """Tool calls of a delta carry an index, those of a message do not."""
    if b'"tool_calls"' not in bytes(message):
        return message
    value = _any.decode(message)
    for index, call in enumerate(value.get("tool_calls") or []):
        call.setdefault("index", index)
    return Raw(_encode(value))
