"""The messages of a chat, checked field by field: whatever is wrong is a 400 that names its place.

A template is a program that fails in words of its own on what it did not expect, so nothing of a wrong type gets that far.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .errors import RequestError

Message = Mapping[str, Any]

_TEXTS = ("role", "name", "tool_call_id", "refusal", "reasoning_content")


def prepare(message: object, index: int) -> dict[str, Any]:
    """A copy with plain-text content and with tool-call arguments parsed, which is what templates expect.

    `null` means absent, and so does content beside tool calls: it is rendered as no text. Raises `RequestError`.
    """
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise _wrong(where, "an object", message)
    prepared = {name: value for name, value in message.items() if value is not None}
    for name in _TEXTS:
        if not isinstance(prepared.get(name, ""), str):
            raise _wrong(f"{where}.{name}", "a string", prepared[name])
    if not prepared.get("role"):
        raise RequestError(f"{where}.role is missing: say who speaks, such as 'user'.", param=f"{where}.role")
    _prepare_calls(prepared, where)
    prepared["content"] = _content(prepared, where)
    return prepared


def _content(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part, f"{where}.content[{at}]") for at, part in enumerate(content))
    if content is not None:
        raise _wrong(f"{where}.content", "a string or a list of text parts", content)
    if message.get("tool_calls") or message.get("function_call"):
        return ""
    raise RequestError(f"{where}.content is missing.", param=f"{where}.content")


def _part_text(part: object, where: str) -> str:
    if not isinstance(part, dict):
        raise _wrong(where, "an object", part)
    if part.get("type") not in ("text", "input_text"):
        kind = part.get("type")
        raise RequestError(f"{where} holds a part of type {kind!r}; this model takes text only.", param=where)
    if not isinstance(part.get("text"), str):
        raise _wrong(f"{where}.text", "a string", part.get("text"))
    return str(part["text"])


def _prepare_calls(message: dict[str, Any], where: str) -> None:
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list):
        raise _wrong(f"{where}.tool_calls", "a list", calls)
    if calls:
        message["tool_calls"] = [_prepare_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]
    if "function_call" in message:
        message["function_call"] = _prepare_function(message["function_call"], f"{where}.function_call")


def _prepare_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise _wrong(where, "an object", call)
    return {**call, "function": _prepare_function(call.get("function"), f"{where}.function")}


def _prepare_function(function: object, where: str) -> dict[str, Any]:
    if not isinstance(function, dict):
        raise _wrong(where, "an object", function)
    if not isinstance(function.get("name"), str):
        raise _wrong(f"{where}.name", "a string", function.get("name"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where}.arguments is no JSON: {error}", param=f"{where}.arguments") from error
    elif not isinstance(arguments, dict | None):
        raise _wrong(f"{where}.arguments", "JSON in a string", arguments)
    return {**function, "arguments": arguments or {}}


_NAMES = {dict: "object", list: "list", str: "string", bool: "boolean", int: "number", float: "number"}


def _wrong(where: str, expected: str, got: object) -> RequestError:
    kind = "null" if got is None else _NAMES.get(type(got), type(got).__name__)
    return RequestError(f"{where} must be {expected}, got {kind}.", param=where)
