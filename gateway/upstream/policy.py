"""Pass-through has limits (rule 32d): fields that cost or keep state at the provider are overwritten or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from gateway.errors import ApiError, bad_request
from gateway.upstream.shapes import Tool

FUNCTION_TOOLS: Final = frozenset({"function", "custom"})
GOOGLES: Final = frozenset({"thinking_config", "thought_tag_marker"})
DEFAULT_TIERS: Final = frozenset({b'"auto"', b'"default"', b'"standard"', b"null"})
_BY_REASON: Final = {
    "a deferred answer would outlive its accounting": "background deferred webhook webhook_url callback_url",
    "the gateway chooses among routes by its own configuration": "models provider route preset transforms",
    "search at the provider is charged apart from tokens and is not priced here": (
        "web_search_options web_search enable_search enable_web_search forced_search search_parameters search_options"
        " search_settings search_mode search_context_size search_domain_filter search_recency_filter"
        " return_related_questions"
    ),
    "what runs at the provider is charged apart from tokens and is not priced here": (
        "plugins data_sources mcp_servers container compound_custom enable_code_interpreter"
    ),
    "a prediction is charged beside the answer, whatever the cap": "prediction",
    "an adapter's price is not in the price book": "lora lora_path lora_request adapter_id",
    "how a server schedules, names and shares its work is not the caller's to set": (
        "priority request_id rid bootstrap_host bootstrap_port bootstrap_room kv_transfer_params session_params"
        " id_slot slot_id extra_key custom_logit_processor"
    ),
    "no state is kept at the provider": "previous_response_id conversation cached_content cachedContent",
    "the prompt must be given so that it can be counted": "input_ids input_embeds prompt_embeds prompt_token_ids",
    "a parameter must be named at the top, where it can be checked": (
        "generationConfig generation_config sampling_params parameters options"
    ),
    "choices are counted by 'n'": "n_cmpl num_return_sequences candidateCount candidate_count num_completions",
}
REFUSED: Final = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
"""On every provider: one that does not know a field today may tomorrow."""
_TRIVIAL: Final = frozenset({b"null", b"false", b"[]"})
"""An empty object is none of them: `web_search_options: {}` switches the search on."""
SHORT_RETENTION: Final = frozenset({b"null", b'"in_memory"', b'"in-memory"'})
_FALSE: Final = Raw(b"false")


_tools = msgspec.json.Decoder(list[Tool])
_text = msgspec.json.Decoder(str)

_object = msgspec.json.Decoder(dict[str, dict[str, Raw]] | None)

WATCHED: Final = frozenset(
    {*REFUSED, "tools", "store", "service_tier", "cache_salt", "prompt_cache_retention", "extra_body"}
)


def apply(fields: dict[str, Raw], team_id: str) -> None:
    """Overwrites in place. Raises `ApiError` (400) that names the field."""
    if WATCHED.isdisjoint(fields):
        return
    refuse(fields)
    if "store" in fields:
        fields["store"] = _FALSE
    if "tools" in fields:
        _check_tools(fields["tools"])
    tier = fields.get("service_tier")
    if tier is not None and bytes(tier) not in DEFAULT_TIERS:
        raise bad_request(
            "'service_tier' cannot be chosen through this gateway: only the default tier is priced.",
            param="service_tier",
            code="unsupported_field",
        )
    if "cache_salt" in fields:
        fields["cache_salt"] = Raw(msgspec.json.encode(f"{team_id}/{_salt(fields['cache_salt'])}"))


def refuse(fields: Mapping[str, Raw]) -> None:
    """Raises `ApiError` 400 for what no provider may be told."""
    for name in REFUSED.keys() & fields.keys():
        if bytes(fields[name]) not in _TRIVIAL:
            raise _unsupported(name, REFUSED[name])
    if bytes(fields.get("prompt_cache_retention", b"null")) not in SHORT_RETENTION:
        raise _unsupported("prompt_cache_retention", "prompts are not kept at the provider longer than its cache lasts")
    if "extra_body" in fields:
        _check_extra(fields["extra_body"])


def _check_extra(raw: Raw) -> None:
    """Google's compatible endpoint takes its own options in here; of those, how much it thinks is free to choose."""
    try:
        extra = _object.decode(raw) or {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request("'extra_body' must be an object.", param="extra_body") from error
    if any(name != "google" or not known.keys() <= GOOGLES for name, known in extra.items()):
        raise _unsupported("extra_body", "a parameter must be named at the top, where it can be checked")


def _unsupported(name: str, reason: str) -> ApiError:
    return bad_request(f"'{name}' cannot be used through this gateway: {reason}.", param=name, code="unsupported_field")


def _check_tools(raw: Raw) -> None:
    if bytes(raw) == b"null":
        return
    try:
        tools = _tools.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"'tools' must be a list of tools: {error}", param="tools") from error
    for tool in tools:
        if tool.type not in FUNCTION_TOOLS:
            raise bad_request(
                f"Tools of type '{tool.type}' run at the provider and are not priced here; use functions.",
                param="tools",
                code="unsupported_tool",
            )


def _salt(raw: Raw) -> str:
    try:
        return _text.decode(raw)
    except msgspec.DecodeError as error:
        raise bad_request("'cache_salt' must be a string", param="cache_salt") from error
