"""OpenAI's Responses form, as far as translation needs it, and a Responses request as a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.chat import Json, raw
from gateway.dialects.reading import read, refuse_others, unmapped
from gateway.errors import bad_request

TARGET: Final = "a model through this endpoint"
STATEFUL: Final = {
    "previous_response_id": "no answer is stored here; send the whole conversation as 'input'",
    "conversation": "no conversation is stored here; send all of it as 'input'",
    "background": "answers are given at once; a background answer would outlive its accounting",
    "prompt": "no prompt is stored here; send it as 'instructions' and 'input'",
}
ENCRYPTED: Final = "reasoning.encrypted_content"


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str


class PlainText(Struct, tag_field="type", tag="text"):
    text: str


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    text: str


class Refusal(Struct, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    detail: str | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    file_data: str | None = None
    filename: str | None = None


Part = InputText | OutputText | PlainText | ReasoningText | SummaryText | Refusal | InputImage | InputFile


class Item(Struct):
    """Any item of a conversation; without a type it is a message."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Tool(Struct, omit_defaults=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ToolChoice(Struct):
    type: str
    name: str | None = None


class Format(Struct, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Json | None = None
    strict: bool | None = None
    description: str | None = None


class Text(Struct):
    format: Format | None = None


class Reasoning(Struct):
    effort: str | None = None


class Request(Struct):
    input: str | list[Item]
    instructions: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    user: str | None = None
    include: list[str] | None = None
    truncation: str | None = None


REQUEST: Final = msgspec.json.Decoder(Request)

KNOWN: Final = frozenset(field.name for field in msgspec.structs.fields(Request)) | frozenset(
    (
        "model max_output_tokens stream stream_options store metadata service_tier safety_identifier"
        " prompt_cache_key prompt_cache_retention"
    ).split()
)
PASSED: Final = ("stream", "service_tier")


def check_state(fields: Mapping[str, Raw]) -> None:
    """Raises `ApiError` 400 for what would need an answer to be kept."""
    for name, reason in STATEFUL.items():
        if bytes(fields.get(name, b"null")) not in (b"null", b"false"):
            raise bad_request(
                f"'{name}' cannot be used through this gateway: {reason}.", param=name, code="unsupported_field"
            )


def request(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """The fields of a chat request, without model and maximum. Raises `ApiError` 400 for what has no counterpart there."""
    refuse_others(fields, KNOWN, TARGET)
    asked = read(REQUEST, fields)
    if asked.truncation not in (None, "disabled"):
        raise unmapped("truncation", TARGET, "nothing is cut from a conversation here")
    for wanted in asked.include or []:
        if wanted != ENCRYPTED:
            raise unmapped("include", TARGET, f"there is no '{wanted[:60]}'")
    made: dict[str, Raw] = {"messages": raw(_messages(asked))}
    for name, value in (
        ("temperature", asked.temperature),
        ("top_p", asked.top_p),
        ("user", asked.user),
        ("reasoning_effort", asked.reasoning.effort if asked.reasoning is not None else None),
    ):
        if value is not None:
            made[name] = raw(value)
    made |= {name: fields[name] for name in PASSED if name in fields}
    if asked.tools:
        made["tools"] = raw([_tool(each, index) for index, each in enumerate(asked.tools)])
        if asked.tool_choice is not None:
            made["tool_choice"] = raw(_choice(asked.tool_choice))
        if asked.parallel_tool_calls is not None:
            made["parallel_tool_calls"] = raw(asked.parallel_tool_calls)
    if asked.text is not None and asked.text.format is not None and asked.text.format.type != "text":
        made["response_format"] = raw(_format(asked.text.format))
    return made


def _tool(tool: Tool, index: int) -> Json:
    if tool.type != "function" or tool.name is None:
        raise unmapped(f"tools[{index}]", TARGET, f"tools of type '{tool.type[:60]}' run at a provider; use functions")
    function: Json = {"name": tool.name, "parameters": tool.parameters or {"type": "object", "properties": {}}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: str | ToolChoice) -> str | Json:
    if isinstance(choice, str):
        return choice
    if choice.type != "function" or choice.name is None:
        raise unmapped("tool_choice", TARGET, "only functions can be chosen")
    return {"type": "function", "function": {"name": choice.name}}


def _format(wanted: Format) -> Json:
    if wanted.type == "json_object":
        return {"type": "json_object"}
    schema = {"name": wanted.name or "answer", "schema": wanted.schema or {}, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": {k: v for k, v in schema.items() if v is not None}}


def _messages(asked: Request) -> list[Json]:
    """Calls that follow each other, or an assistant's words, are one turn. Reasoning items are left out, as no server takes
    back reasoning that it did not sign.
    """
    made: list[Json] = []
    if asked.instructions:
        made.append({"role": "system", "content": asked.instructions})
    if isinstance(asked.input, str):
        return [*made, {"role": "user", "content": asked.input}]
    for place, item in enumerate(asked.input):
        where = f"input[{place}]"
        if item.type == "message":
            message = _message(item, where)
            if message["role"] == "assistant" and made and made[-1]["role"] == "assistant" and not made[-1]["content"]:
                made[-1]["content"] = message["content"]
            else:
                made.append(message)
        elif item.type == "function_call":
            if item.call_id is None or item.name is None:
                raise bad_request(f"'{where}' needs 'call_id' and 'name'.", param=where)
            if not made or made[-1]["role"] != "assistant":
                made.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments or "{}"}
            call = {"id": item.call_id, "type": "function", "function": function}
            made[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            if item.call_id is None:
                raise bad_request(f"'{where}' needs 'call_id'.", param=where)
            output = item.output if isinstance(item.output, str) else _joined(item.output or [], where)
            made.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        elif item.type != "reasoning":
            raise unmapped(
                where, TARGET, f"an item of type '{item.type[:60]}' belongs to a provider's own tools or state"
            )
    if not made:
        raise bad_request("'input' must have at least one message.", param="input")
    return made


def _joined(parts: list[Part], where: str) -> str:
    texts = [part.text for part in parts if isinstance(part, (InputText, OutputText, PlainText))]
    if len(texts) != len(parts):
        raise unmapped(where, TARGET, "a function's output is text")
    return "\n".join(texts)


def _message(item: Item, where: str) -> Json:
    if item.role is None or item.content is None:
        raise bad_request(f"'{where}' needs 'role' and 'content'.", param=where)
    if isinstance(item.content, str):
        return {"role": item.role, "content": item.content}
    if item.role == "assistant":
        texts = [part.refusal if isinstance(part, Refusal) else getattr(part, "text", "") for part in item.content]
        return {"role": "assistant", "content": "".join(texts)}
    return {"role": item.role, "content": [_part(part, where) for part in item.content]}


def _part(part: Part, where: str) -> Json:
    match part:
        case InputText() | OutputText() | PlainText():
            return {"type": "text", "text": part.text}
        case InputImage(image_url=str(url)):
            image: dict[str, Any] = {"url": url}
            if part.detail is not None:
                image["detail"] = part.detail
            return {"type": "image_url", "image_url": image}
        case InputFile(file_data=str(data)):
            return {"type": "file", "file": {"filename": part.filename or "file", "file_data": data}}
    raise unmapped(where, TARGET, "pictures and files are given whole or by address, not by an id")
