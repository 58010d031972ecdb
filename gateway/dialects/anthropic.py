"""Anthropic's Messages form, as far as translation needs it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from billing.usage import Usage
from gateway.dialects.chat import Json


class Base64Source(Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str


class UrlSource(Struct, tag_field="type", tag="url"):
    url: str


class TextSource(Struct, tag_field="type", tag="text"):
    data: str
    media_type: str = "text/plain"


Source = Base64Source | UrlSource | TextSource


class Text(Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str
    cache_control: Json | None = None


class Image(Struct, tag_field="type", tag="image", omit_defaults=True):
    source: Base64Source | UrlSource
    cache_control: Json | None = None


class Document(Struct, tag_field="type", tag="document", omit_defaults=True):
    source: Source
    title: str | None = None
    cache_control: Json | None = None


class Thinking(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinking(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUse(Struct, tag_field="type", tag="tool_use", omit_defaults=True):
    id: str
    name: str
    input: Json
    cache_control: Json | None = None


class ToolResult(Struct, tag_field="type", tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: str | list[Text | Image | Document] | None = None
    is_error: bool | None = None
    cache_control: Json | None = None


Block = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult


class Message(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct, omit_defaults=True):
    name: str
    input_schema: Json | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: Json | None = None


class ToolChoice(Struct, omit_defaults=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Struct):
    user_id: str | None = None


class ThinkingConfig(Struct):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputFormat(Struct):
    type: Literal["json_schema"]
    schema: Json


class OutputConfig(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Request(Struct):
    messages: list[Message]
    system: str | list[Text] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Metadata | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None


REQUEST: Final = msgspec.json.Decoder(Request)

KNOWN: Final = frozenset(
    {*(field.name for field in msgspec.structs.fields(Request)), "model", "max_tokens", "stream", "service_tier"}
)

TO_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
FROM_FINISH: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def usage_object(usage: Usage) -> Json:
    """Anthropic's usage: input without what was read from or written to a cache."""
    counts: Json = {
        "input_tokens": usage.input + usage.audio_input + usage.image_input,
        "cache_creation_input_tokens": usage.cache_write_5m + usage.cache_write_1h,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.total_output,
    }
    if usage.cache_write_5m or usage.cache_write_1h:
        counts["cache_creation"] = {
            "ephemeral_5m_input_tokens": usage.cache_write_5m,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        }
    if usage.reasoning:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return counts
