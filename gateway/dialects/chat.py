"""OpenAI's chat form: the language every other one is translated by way of.

Beside OpenAI's own fields a message may carry `reasoning_content` (as DeepSeek and vLLM have it) and `thinking_blocks` (as
LiteLLM has them: Anthropic's blocks with their signatures, so that a conversation with tools can be continued).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

Json = dict[str, Any]


class TextPart(Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str
    cache_control: Json | None = None


class ImageUrl(Struct, omit_defaults=True):
    url: str
    detail: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url", omit_defaults=True):
    image_url: ImageUrl
    cache_control: Json | None = None


class Audio(Struct):
    data: str
    format: str


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    input_audio: Audio


class File(Struct, omit_defaults=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(Struct, tag_field="type", tag="file", omit_defaults=True):
    file: File
    cache_control: Json | None = None


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str


Part = TextPart | ImagePart | AudioPart | FilePart | RefusalPart


class Function(Struct, omit_defaults=True):
    name: str
    arguments: str = ""


class ToolCall(Struct, omit_defaults=True):
    id: str
    function: Function
    type: Literal["function"] = "function"
    extra_content: Json | None = None
    """Google's thought signatures travel here, as on its compatible endpoint."""


class Thinking(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinking(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class Message(Struct, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: list[Thinking | RedactedThinking] | None = None
    cache_control: Json | None = None


class FunctionTool(Struct, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Struct, omit_defaults=True):
    function: FunctionTool
    type: Literal["function"] = "function"
    cache_control: Json | None = None


class ChosenFunction(Struct):
    name: str


class ToolChoice(Struct):
    function: ChosenFunction
    type: Literal["function"] = "function"


class JsonSchema(Struct, omit_defaults=True):
    name: str = "answer"
    schema: Json | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Request(Struct, omit_defaults=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else (self.stop or [])


REQUEST: Final = msgspec.json.Decoder(Request)

LABELS: Final = frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "store",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
        "cache_salt",
        "verbosity",
    }
)
"""What is the gateway's own business, a label, or a hint: it goes no further and nothing is lost by that."""


class DeltaFunction(Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(Struct):
    index: int = 0
    id: str | None = None
    function: DeltaFunction | None = None


class Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class ChunkChoice(Struct):
    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM's: the stop string that was met."""


class Chunk(Struct):
    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ChunkChoice] | None = None


CHUNK: Final = msgspec.json.Decoder(Chunk)


class AnswerFunction(Struct):
    name: str = ""
    arguments: str | None = None


class AnswerCall(Struct):
    id: str = ""
    function: AnswerFunction | None = None


class AnswerMessage(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[AnswerCall] | None = None


class AnswerChoice(Struct):
    message: AnswerMessage
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Answer(Struct):
    choices: list[AnswerChoice]
    id: str = ""
    model: str = ""
    created: int = 0


ANSWER: Final = msgspec.json.Decoder(Answer)


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
