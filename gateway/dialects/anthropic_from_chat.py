"""A chat request as a Messages request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from gateway.dialects import chat
from gateway.dialects.chat import Json
from gateway.dialects.reading import arguments_object, data_url, read, refuse_others, unmapped
from gateway.errors import bad_request

TARGET: Final = "an Anthropic model"
DEFAULT_MAX_TOKENS: Final = 4096
"""Anthropic asks for a maximum; this is the default of `limits.default_output_reserve`."""
BUDGETS: Final = {"minimal": 1024, "low": 1024, "medium": 4096, "high": 16384, "xhigh": 32768}
"""Thinking tokens of a `reasoning_effort`; Anthropic's least is 1024."""
LEAST_BUDGET: Final = 1024
ROOM_FOR_ANSWER: Final = 256

KNOWN: Final = chat.LABELS | frozenset(
    {
        *(
            "messages max_completion_tokens max_tokens temperature top_p top_k stop n tools tool_choice"
            " parallel_tool_calls response_format reasoning_effort user thinking"
        ).split(),
    }
)


def request(fields: Mapping[str, Raw], model: str, output_cap: int | None) -> Json:
    """The body for `POST /v1/messages`. Raises `ApiError` 400 for what has no counterpart there."""
    refuse_others(fields, KNOWN, TARGET)
    asked = read(chat.REQUEST, fields)
    if asked.n not in (None, 1):
        raise unmapped("n", TARGET, "it gives one choice at a time")
    if asked.temperature is not None and asked.temperature > 1:
        raise unmapped("temperature", TARGET, "its range is 0 to 1")
    named = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    most = output_cap if output_cap is not None else named
    system, messages = _conversation(asked.messages)
    body: Json = {"model": model, "max_tokens": DEFAULT_MAX_TOKENS if most is None else most, "messages": messages}
    if system:
        body["system"] = system
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(asked, name)) is not None:
            body[name] = value
    if asked.stops:
        body["stop_sequences"] = asked.stops
    if asked.user is not None:
        body["metadata"] = {"user_id": asked.user}
    if bytes(fields.get("stream", b"")) == b"true":
        body["stream"] = True
    _tools(asked, body)
    _format(asked, body)
    _thinking(asked, fields, body, named)
    return body


def _tools(asked: chat.Request, body: Json) -> None:
    if asked.tools:
        body["tools"] = [_tool(each) for each in asked.tools]
    choice: Json | None = None
    if isinstance(asked.tool_choice, chat.ToolChoice):
        choice = {"type": "tool", "name": asked.tool_choice.function.name}
    elif asked.tool_choice is not None:
        choice = {"type": {"required": "any"}.get(asked.tool_choice, asked.tool_choice)}
    if asked.parallel_tool_calls is False and asked.tools and (choice is None or choice["type"] != "none"):
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    if choice is not None and asked.tools:
        body["tool_choice"] = choice


def _tool(tool: chat.Tool) -> Json:
    function = tool.function
    made: Json = {"name": function.name, "input_schema": function.parameters or {"type": "object", "properties": {}}}
    if function.description is not None:
        made["description"] = function.description
    if function.strict is not None:
        made["strict"] = function.strict
    if tool.cache_control is not None:
        made["cache_control"] = tool.cache_control
    return made


def _format(asked: chat.Request, body: Json) -> None:
    wanted = asked.response_format
    if wanted is None or wanted.type == "text":
        return
    if wanted.type == "json_object" or wanted.json_schema is None or wanted.json_schema.schema is None:
        raise unmapped("response_format", TARGET, "it takes a JSON schema, not `json_object`")
    body["output_config"] = {"format": {"type": "json_schema", "schema": wanted.json_schema.schema}}


def _thinking(asked: chat.Request, fields: Mapping[str, Raw], body: Json, named: int | None) -> None:
    """`thinking` as Anthropic has it wins over `reasoning_effort`."""
    if bytes(fields.get("thinking", b"null")) != b"null":
        body["thinking"] = fields["thinking"]
    elif asked.reasoning_effort not in (None, "none"):
        assert asked.reasoning_effort is not None
        most = body["max_tokens"]
        budget = min(BUDGETS[asked.reasoning_effort], most - ROOM_FOR_ANSWER)
        if budget < LEAST_BUDGET:
            raise unmapped(
                "reasoning_effort",
                TARGET,
                f"thinking needs a maximum of {LEAST_BUDGET + ROOM_FOR_ANSWER} output tokens",
            )
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _conversation(messages: list[chat.Message]) -> tuple[list[Json], list[Json]]:
    """System blocks, and turns of alternating roles: results of tools stand first in the user's turn."""
    system: list[Json] = []
    turns: list[Json] = []
    for place, message in enumerate(messages):
        if message.role in ("system", "developer"):
            system += _blocks(message, place)
            continue
        if message.role == "assistant":
            role, blocks = "assistant", _assistant(message, place)
        elif message.role == "tool":
            role, blocks = "user", [_result(message, place)]
        else:
            role, blocks = "user", _blocks(message, place)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _assistant(message: chat.Message, place: int) -> list[Json]:
    blocks: list[Json] = []
    for thought in message.thinking_blocks or []:
        if isinstance(thought, chat.Thinking):
            blocks.append({"type": "thinking", "thinking": thought.thinking, "signature": thought.signature})
        else:
            blocks.append({"type": "redacted_thinking", "data": thought.data})
    blocks += _blocks(message, place)
    if message.refusal:
        blocks.append({"type": "text", "text": message.refusal})
    for index, call in enumerate(message.tool_calls or []):
        arguments = arguments_object(
            call.function.arguments, f"messages[{place}].tool_calls[{index}].function.arguments"
        )
        blocks.append({"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments})
    return blocks


def _result(message: chat.Message, place: int) -> Json:
    if message.tool_call_id is None:
        raise bad_request(
            f"'messages[{place}].tool_call_id' is required of a tool's message.",
            param=f"messages[{place}].tool_call_id",
        )
    block: Json = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    content = message.content if isinstance(message.content, str) else _parts(message.content or [], place)
    if content:
        block["content"] = content
    if message.cache_control is not None:
        block["cache_control"] = message.cache_control
    return block


def _blocks(message: chat.Message, place: int) -> list[Json]:
    if isinstance(message.content, str):
        blocks: list[Json] = [{"type": "text", "text": message.content}] if message.content else []
    else:
        blocks = _parts(message.content or [], place)
    if blocks and message.cache_control is not None:
        blocks[-1]["cache_control"] = message.cache_control
    return blocks


def _parts(parts: list[chat.Part], place: int) -> list[Json]:
    return [_part(part, f"messages[{place}].content[{index}]") for index, part in enumerate(parts)]


def _part(part: chat.Part, where: str) -> Json:
    match part:
        case chat.TextPart():
            block: Json = {"type": "text", "text": part.text}
        case chat.RefusalPart():
            return {"type": "text", "text": part.refusal}
        case chat.ImagePart():
            block = {"type": "image", "source": _source(part.image_url.url, where)}
        case chat.FilePart(file=chat.File(file_data=str(data))):
            block = {"type": "document", "source": _source(data, where)}
            if part.file.filename is not None:
                block["title"] = part.file.filename
        case chat.FilePart():
            raise unmapped(where, TARGET, "a file must be given whole, as `file_data`")
        case chat.AudioPart():
            raise unmapped(where, TARGET, "it hears no audio")
    if part.cache_control is not None:
        block["cache_control"] = part.cache_control
    return block


def _source(url: str, where: str) -> Json:
    inline = data_url(url)
    if inline is not None:
        return {"type": "base64", "media_type": inline[0], "data": inline[1]}
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    raise bad_request(f"'{where}' must be an https: address or a data: URL in base64.", param=where)
