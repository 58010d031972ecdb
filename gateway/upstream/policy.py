"""Pass-through has limits (rule 32d): fields that cost or keep state at the provider are overwritten or refused."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from gateway.errors import bad_request

FUNCTION_TOOLS: Final = frozenset({"function", "custom"})
DEFAULT_TIERS: Final = frozenset({b'"auto"', b'"default"', b'"standard"', b"null"})
REFUSED: Final = {
    "background": "answers are given at once; a background answer would outlive its accounting",
    "models": "the gateway chooses among routes by its own configuration",
    "web_search_options": "hosted web search is charged apart from tokens and is not priced here",
    "plugins": "hosted plugins are charged apart from tokens and are not priced here",
    "priority": "scheduling priority is not the caller's to set",
    "previous_response_id": "no state is kept at the provider",
}
_TRIVIAL: Final = frozenset({b"null", b"false", b"[]", b"{}"})
_FALSE: Final = Raw(b"false")


class _Tool(msgspec.Struct):
    type: str = "function"


_tools = msgspec.json.Decoder(list[_Tool])
_text = msgspec.json.Decoder(str)

WATCHED: Final = frozenset({*REFUSED, "tools", "store", "service_tier", "cache_salt"})


def apply(fields: dict[str, Raw], team_id: str) -> None:
    """Overwrites in place. Raises `ApiError` (400) that names the field."""
    if WATCHED.isdisjoint(fields):
        return
    for name, reason in REFUSED.items():
        raw = fields.get(name)
        if raw is not None and bytes(raw) not in _TRIVIAL:
            raise bad_request(
                f"'{name}' cannot be used through this gateway: {reason}.", param=name, code="unsupported_field"
            )
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
