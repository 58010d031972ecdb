"""A chat request as a generateContent request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.dialects import chat
from gateway.dialects.chat import Json
from gateway.dialects.reading import arguments_object, data_url, read, refuse_others, unmapped
from gateway.errors import bad_request

TARGET: Final = "a Gemini model"
BUDGETS: Final = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 32768}
"""Thinking tokens of a `reasoning_effort`, as Google's compatible endpoint counts them."""
AUDIO_TYPES: Final = {"wav": "audio/wav", "mp3": "audio/mp3", "flac": "audio/flac", "ogg": "audio/ogg"}

KNOWN: Final = chat.LABELS | frozenset(
    (
        "messages max_completion_tokens max_tokens temperature top_p top_k stop n seed presence_penalty"
        " frequency_penalty tools tool_choice parallel_tool_calls response_format reasoning_effort user"
    ).split()
)

_any = msgspec.json.Decoder(Any)


def request(fields: Mapping[str, Raw], output_cap: int | None) -> Json:
    """The body for `:generateContent`. Raises `ApiError` 400 for what has no counterpart there."""
    refuse_others(fields, KNOWN, TARGET)
    asked = read(chat.REQUEST, fields)
    if asked.parallel_tool_calls is False and asked.tools:
        raise unmapped("parallel_tool_calls", TARGET, "it cannot be kept to one call at a time")
    system, contents = _conversation(asked.messages)
    body: Json = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    if asked.tools:
        body["tools"] = [{"functionDeclarations": [_declaration(tool.function) for tool in asked.tools]}]
        if asked.tool_choice is not None:
            body["toolConfig"] = {"functionCallingConfig": _choice(asked.tool_choice)}
    config = _config(asked, output_cap)
    if config:
        body["generationConfig"] = config
    return body


def _config(asked: chat.Request, output_cap: int | None) -> Json:
    named = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    config: Json = {
        "maxOutputTokens": output_cap if output_cap is not None else named,
        "temperature": asked.temperature,
        "topP": asked.top_p,
        "topK": asked.top_k,
        "stopSequences": asked.stops or None,
        "candidateCount": asked.n if asked.n != 1 else None,
        "seed": asked.seed,
        "presencePenalty": asked.presence_penalty,
        "frequencyPenalty": asked.frequency_penalty,
    }
    wanted = asked.response_format
    if wanted is not None and wanted.type != "text":
        config["responseMimeType"] = "application/json"
        if wanted.json_schema is not None:
            config["responseJsonSchema"] = wanted.json_schema.schema
    if asked.reasoning_effort is not None:
        budget = BUDGETS[asked.reasoning_effort]
        config["thinkingConfig"] = {"thinkingBudget": budget, "includeThoughts": budget > 0}
    return {name: value for name, value in config.items() if value is not None}


def _declaration(function: chat.FunctionTool) -> Json:
    made: Json = {"name": function.name}
    if function.description is not None:
        made["description"] = function.description
    if function.parameters:
        made["parametersJsonSchema"] = function.parameters
    return made


def _choice(choice: str | chat.ToolChoice) -> Json:
    if isinstance(choice, chat.ToolChoice):
        return {"mode": "ANY", "allowedFunctionNames": [choice.function.name]}
    return {"mode": {"required": "ANY"}.get(choice, choice.upper())}


def _conversation(messages: list[chat.Message]) -> tuple[list[Json], list[Json]]:
    """The system's parts, and turns of alternating roles. A tool's result is told by its function's name."""
    system: list[Json] = []
    turns: list[Json] = []
    names: dict[str, str] = {}
    for place, message in enumerate(messages):
        if message.role in ("system", "developer"):
            system += _parts(message, place)
            continue
        if message.role == "assistant":
            role, parts = "model", _assistant(message, place, names)
        elif message.role == "tool":
            role, parts = "user", [_result(message, place, names)]
        else:
            role, parts = "user", _parts(message, place)
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    return system, turns


def _assistant(message: chat.Message, place: int, names: dict[str, str]) -> list[Json]:
    parts = _parts(message, place)
    if message.refusal:
        parts.append({"text": message.refusal})
    for index, call in enumerate(message.tool_calls or []):
        names[call.id] = call.function.name
        arguments = arguments_object(
            call.function.arguments, f"messages[{place}].tool_calls[{index}].function.arguments"
        )
        part: Json = {"functionCall": {"name": call.function.name, "args": arguments}}
        google = (call.extra_content or {}).get("google")
        if isinstance(google, dict) and isinstance(google.get("thought_signature"), str):
            part["thoughtSignature"] = google["thought_signature"]
        parts.append(part)
    return parts


def _result(message: chat.Message, place: int, names: dict[str, str]) -> Json:
    name = names.get(message.tool_call_id or "")
    if name is None:
        raise bad_request(
            f"'messages[{place}].tool_call_id' must name a tool call of an earlier message.",
            param=f"messages[{place}].tool_call_id",
        )
    if isinstance(message.content, str):
        text = message.content
    else:
        parts = _parts(message, place)
        if any("text" not in part for part in parts):
            raise unmapped(f"messages[{place}].content", TARGET, "a tool's result is text or JSON")
        text = "\n".join(part["text"] for part in parts)
    return {"functionResponse": {"name": name, "response": _response(text)}}


def _response(text: str) -> Json:
    """An object as it is; anything else as the `result`."""
    try:
        value = _any.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {"result": text}
    return value if isinstance(value, dict) else {"result": value}


def _parts(message: chat.Message, place: int) -> list[Json]:
    if isinstance(message.content, str):
        return [{"text": message.content}] if message.content else []
    return [_part(part, f"messages[{place}].content[{index}]") for index, part in enumerate(message.content or [])]


def _part(part: chat.Part, where: str) -> Json:
    match part:
        case chat.TextPart():
            return {"text": part.text}
        case chat.RefusalPart():
            return {"text": part.refusal}
        case chat.ImagePart():
            return _inline(part.image_url.url, where)
        case chat.FilePart(file=chat.File(file_data=str(data))):
            return _inline(data, where)
        case chat.AudioPart():
            media_type = AUDIO_TYPES.get(part.input_audio.format)
            if media_type is None:
                raise bad_request(f"'{where}' must be audio as one of {', '.join(AUDIO_TYPES)}.", param=where)
            return {"inlineData": {"mimeType": media_type, "data": part.input_audio.data}}
        case _:
            raise unmapped(where, TARGET, "a file must be given whole, as `file_data`")


def _inline(url: str, where: str) -> Json:
    found = data_url(url)
    if found is None:
        raise unmapped(where, TARGET, "it takes pictures and files whole, as a data: URL in base64")
    return {"inlineData": {"mimeType": found[0], "data": found[1]}}
