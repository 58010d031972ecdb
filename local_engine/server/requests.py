"""Bodies of the caller endpoints, parsed at the edge. Every parameter is honoured or refused; none is ignored silently."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from ..errors import RequestError
from ..ranges import ITEM_RANGES, RANGES, check_range, shown

MAX_BATCH = 1024
MAX_ENTRIES = 1 << 20
"""Of a request's lists of tokens and words (not its prompts), over all of its sequences: each brings them along."""
MAX_BAD_WORDS = 1024
MAX_BAD_CHARACTERS = 1 << 14
"""Of all bad words together, which are tokenised on the event loop."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's; at most one of them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    function: Function


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    type: Literal["function"]
    function: NamedFunction


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters that both endpoints share; None and absence mean the same (null is dropped before)."""

    model: str
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    """Only so many of the prompt's last tokens are read; -1: as many as the context holds."""
    return_tokens_as_token_ids: bool = False
    """In log probabilities tokens are spelt `token_id:7`, so that none is ambiguous."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    # Labels without effect on the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ChatRequest(_Common, forbid_unknown_fields=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """None: `auto` where there are tools."""
    parallel_tool_calls: bool = True
    include_reasoning: bool = True


class CompletionRequest(_Common, forbid_unknown_fields=True, kw_only=True):
    prompt: str | list[Any]
    """A text, texts, token ids, or lists of token ids."""
    echo: bool = False
    logprobs: int | None = None
    add_special_tokens: bool = True


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    input: str | list[Any]
    """A text, texts, token ids, or lists of token ids."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    priority: int = 0
    user: str | None = None


class LoadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    lora_name: str
    lora_path: str


class UnloadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    lora_name: str


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tokens: list[int]
    model: str | None = None


_REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "functions": (([],), "function calling"),
    "function_call": (("none", "auto"), "function calling"),
    "modalities": ((["text"],), "output other than text"),
    "audio": ((), "audio"),
    "prediction": ((), "predicted output"),
    "web_search_options": ((), "web search"),
    "reasoning_effort": (("none",), "reasoning effort"),
    "verbosity": (("medium",), "verbosity"),
    "store": ((False,), "storing completions"),
    "service_tier": (("auto", "default"), "service tiers"),
    "suffix": (("",), "insertion (suffix)"),
    "best_of": ((1,), "best_of"),
    "use_beam_search": ((False,), "beam search"),
    "length_penalty": ((1.0, 1), "beam search"),
    "chat_template": ((), "a template from the request (start the engine with --chat-template)"),
    "documents": (([],), "documents"),
    "mm_processor_kwargs": ((), "multimodal input"),
    "logits_processors": (([],), "logits processors"),
    "kv_transfer_params": ((), "KV transfer"),
}
"""Parameters that OpenAI or vLLM define and this engine lacks: the values that ask for nothing, and what is missing."""

Body = TypeVar("Body", bound=msgspec.Struct)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_WHERE = re.compile(r" - at `\$\.?(.*)`$")


def parse(data: bytes, kind: type[Body]) -> Body:
    """The body as `kind`. Raises `RequestError` naming the parameter."""
    try:
        value = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("The request body is nested too deeply.") from error
    if not isinstance(value, dict):
        raise RequestError("The request body must be a JSON object.")
    fields = {name: item for name, item in value.items() if item is not None}
    _refuse_missing_features(fields)
    _check_numbers(fields)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _named(error) from error


_decoder = msgspec.json.Decoder(float_hook=float)
"""A number beyond float64 becomes infinite, so that its range refuses it by name."""


def _check_numbers(fields: Mapping[str, Any]) -> None:
    """Every number lies in the range of its parameter, also inside lists and maps; wrong types are left to the conversion."""
    for name in fields.keys() & RANGES.keys():
        if _is_number(fields[name]):
            check_range(name, fields[name])
    for name in fields.keys() & ITEM_RANGES.keys():
        _check_items(name, fields[name], name, deeper=True)


def _check_items(name: str, items: object, where: str, *, deeper: bool) -> None:
    if not isinstance(items, dict | list):
        return
    allowed = ITEM_RANGES[name]
    if (
        isinstance(items, list)
        and are_integers(items)
        and (not items or (min(items) in allowed and max(items) in allowed))
    ):
        return
    for key, item in items.items() if isinstance(items, dict) else enumerate(items):
        if deeper and isinstance(item, list):
            _check_items(name, item, f"{where}[{key}]", deeper=False)
        elif _is_number(item) and item not in allowed:
            raise RequestError(f"{where}[{shown(key)}] must be in {allowed}, got {shown(item)}.", param=name)


def are_integers(items: list[Any]) -> bool:
    """Quick also for millions. JSON's true and false are none."""
    return set(map(type, items)) <= {int}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse_missing_features(fields: dict[str, Any]) -> None:
    for name in fields.keys() & _REFUSED.keys():
        neutral, feature = _REFUSED[name]
        if fields[name] not in neutral:
            raise RequestError(
                f"{name} is not supported: this engine has no {feature} yet.", param=name, code="unsupported"
            )
        del fields[name]


def _named(error: msgspec.ValidationError) -> RequestError:
    text = str(error)
    where = _WHERE.search(text)
    path = where.group(1) if where else ""
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        param = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        return RequestError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    missing = re.search(r"missing required field `(.*?)`", text)
    if missing is not None:
        param = missing.group(1)
        return RequestError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    reason = _WHERE.sub("", text)
    return RequestError(f"Invalid value for '{path}': {reason}." if path else f"{reason}.", param=path or None)
