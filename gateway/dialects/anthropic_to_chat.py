"""A Messages request as a chat request.

`cache_control` is left out: where a provider caches, it does so by itself. Earlier turns' thinking is left out too: a
signature is worth nothing to another model, and servers that reason refuse to be shown reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from gateway.dialects import anthropic
from gateway.dialects.chat import Json, raw
from gateway.dialects.reading import encode, read, refuse_others, unmapped

TARGET: Final = "a model that is not Anthropic's"
CLIENT_TOOLS: Final = frozenset({None, "custom"})


def request(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """The fields of a chat request, without model and maximum. Raises `ApiError` 400 for what has no counterpart there."""
    refuse_others(fields, anthropic.KNOWN, TARGET)
    asked = read(anthropic.REQUEST, fields)
    made: dict[str, Raw] = {"messages": raw(_messages(asked))}
    for name, value in (
        ("temperature", asked.temperature),
        ("top_p", asked.top_p),
        ("top_k", asked.top_k),
        ("stop", asked.stop_sequences or None),
        ("user", asked.metadata.user_id if asked.metadata is not None else None),
        ("reasoning_effort", _effort(asked)),
    ):
        if value is not None:
            made[name] = raw(value)
    if "stream" in fields:
        made["stream"] = fields["stream"]
    if asked.tools:
        made["tools"] = raw([_tool(each, index) for index, each in enumerate(asked.tools)])
        _choice(asked.tool_choice, made)
    if asked.output_config is not None and asked.output_config.format is not None:
        schema = {"name": "answer", "schema": asked.output_config.format.schema, "strict": True}
        made["response_format"] = raw({"type": "json_schema", "json_schema": schema})
    return made


def _tool(tool: anthropic.Tool, index: int) -> Json:
    if tool.type not in CLIENT_TOOLS:
        raise unmapped(f"tools[{index}]", TARGET, f"'{tool.type}' is a tool of Anthropic's own")
    function: Json = {"name": tool.name, "parameters": tool.input_schema or {"type": "object", "properties": {}}}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: anthropic.ToolChoice | None, made: dict[str, Raw]) -> None:
    if choice is None:
        return
    if choice.type == "tool":
        made["tool_choice"] = raw({"type": "function", "function": {"name": choice.name}})
    else:
        made["tool_choice"] = raw({"any": "required"}.get(choice.type, choice.type))
    if choice.disable_parallel_tool_use:
        made["parallel_tool_calls"] = raw(False)


def _effort(asked: anthropic.Request) -> str | None:
    if asked.output_config is not None and asked.output_config.effort is not None:
        return {"max": "xhigh"}.get(asked.output_config.effort, asked.output_config.effort)
    thinking = asked.thinking
    if thinking is None or thinking.type != "enabled":
        return None
    budget = thinking.budget_tokens or 0
    return "high" if budget >= 16384 else "medium" if budget >= 4096 else "low"


def _messages(asked: anthropic.Request) -> list[Json]:
    made: list[Json] = []
    if isinstance(asked.system, str):
        made.append({"role": "system", "content": asked.system})
    elif asked.system:
        made.append({"role": "system", "content": "\n\n".join(each.text for each in asked.system)})
    for place, message in enumerate(asked.messages):
        if isinstance(message.content, str):
            made.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            made += _assistant(message.content, place)
        else:
            made += _user(message.role, message.content, place)
    return made


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _assistant(blocks: list[anthropic.Block], place: int) -> list[Json]:
    texts: list[str] = []
    calls: list[Json] = []
    for index, block in enumerate(blocks):
        match block:
            case anthropic.Text():
                texts.append(block.text)
            case anthropic.ToolUse():
                function = {"name": block.name, "arguments": encode(block.input).decode()}
                calls.append({"id": block.id, "type": "function", "function": function})
            case anthropic.Thinking() | anthropic.RedactedThinking():
                pass
            case _:
                raise unmapped(f"messages[{place}].content[{index}]", TARGET, "an assistant's turn has text and tools")
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None}
    if calls:
        message["tool_calls"] = calls
    return [message] if texts or calls else []


def _user(role: str, blocks: list[anthropic.Block], place: int) -> list[Json]:
    """Results of tools become messages of their own; pictures in them follow in the user's turn."""
    results: list[Json] = []
    parts: list[Json] = []
    for index, block in enumerate(blocks):
        where = f"messages[{place}].content[{index}]"
        match block:
            case anthropic.ToolResult():
                text, media = _result(block, where)
                results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
                parts += media
            case anthropic.Text() | anthropic.Image() | anthropic.Document():
                parts.append(_part(block, where))
            case _:
                raise unmapped(where, TARGET, f"a {role}'s turn has no such block")
    if not parts:
        return results
    plain = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": role, "content": parts[0]["text"] if plain else parts}]


def _result(block: anthropic.ToolResult, where: str) -> tuple[str, list[Json]]:
    if block.content is None or isinstance(block.content, str):
        return block.content or "", []
    parts = [_part(each, where) for each in block.content]
    return "\n".join(part["text"] for part in parts if part["type"] == "text"), [
        part for part in parts if part["type"] != "text"
    ]


def _part(block: anthropic.Text | anthropic.Image | anthropic.Document, where: str) -> Json:
    match block:
        case anthropic.Text():
            return _text(block.text)
        case anthropic.Image(source=anthropic.UrlSource(url=url)):
            return {"type": "image_url", "image_url": {"url": url}}
        case anthropic.Image(source=anthropic.Base64Source(media_type=media_type, data=data)):
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case anthropic.Document(source=anthropic.TextSource(data=text)):
            return _text(text)
        case anthropic.Document(source=anthropic.Base64Source(media_type=media_type, data=data)):
            name = block.title or "document"
            return {"type": "file", "file": {"filename": name, "file_data": f"data:{media_type};base64,{data}"}}
    raise unmapped(where, TARGET, "a document must be given whole")
