"""Anthropic's native Messages API: taken untouched from callers of `/v1/messages`, translated for callers of chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from billing.usage import Usage
from gateway import errors
from gateway.dialects import anthropic_from_chat
from gateway.dialects.anthropic import TO_FINISH
from gateway.dialects.reading import encode
from gateway.errors import ApiError, bad_request
from gateway.upstream import policy
from gateway.upstream.anthropic_stream import ChatScanner
from gateway.upstream.anthropic_usage import from_anthropic, tier_in
from gateway.upstream.base import Adapter, Answer, BadAnswer, Call, Failure, Outgoing, delivered
from gateway.upstream.chat_answers import whole_chat
from gateway.upstream.events import Scanner
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.passing import PassingScanner
from gateway.upstream.redact import ProviderError, read_error_object, redact
from gateway.upstream.shapes import NULL, given

if TYPE_CHECKING:
    from gateway.routing.provider import Provider
    from gateway.routing.routes import Route

VERSION: Final = "2023-06-01"
OVERLOADED: Final = 529
CLIENT_TOOLS: Final = ("bash_", "text_editor_", "computer_", "memory_")
"""Tools of Anthropic's own that run at the client; all others run at Anthropic and cost apart from tokens."""
REFUSED: Final = {
    "container": "containers keep state at the provider and are charged apart from tokens",
    "mcp_servers": "the provider would call addresses that the caller names",
    "inference_geo": "another region has another price, which is not in the price book",
    "speed": "fast answers have another price, which is not in the price book",
    "workspace_id": "the workspace is the gateway's own",
    "user_profile_id": "no state is kept at the provider",
    "n": "a message is one answer",
    "best_of": "a message is one answer",
}
TIERS: Final = frozenset({b"null", b'"auto"', b'"standard_only"'})


_object = msgspec.json.Decoder(dict[str, Any])


class _Tool(Struct):
    type: str | None = None


_tools = msgspec.json.Decoder(list[_Tool] | None)


def check(fields: dict[str, Raw]) -> None:
    """Rule 32d for Anthropic's own fields. Raises `ApiError` 400."""
    policy.refuse(fields)
    for name, reason in REFUSED.items():
        if name in fields and bytes(fields[name]) not in (b"null", b"[]", b'"standard"'):
            raise bad_request(
                f"'{name}' cannot be used through this gateway: {reason}.", param=name, code="unsupported_field"
            )
    if bytes(fields.get("service_tier", b"null")) not in TIERS:
        raise bad_request(
            "'service_tier' must be 'auto' or 'standard_only'.", param="service_tier", code="unsupported_field"
        )
    if "tools" not in fields:
        return
    try:
        tools = _tools.decode(fields["tools"]) or []
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"'tools' must be a list of tools: {error}", param="tools") from error
    for tool in tools:
        if tool.type not in (None, "custom") and not tool.type.startswith(CLIENT_TOOLS):
            raise bad_request(
                f"Tools of type '{tool.type}' run at the provider and are not priced here; run them yourself.",
                param="tools",
                code="unsupported_tool",
            )


class _Whole(Struct):
    content: list[dict[str, Any]] | None = None
    id: str = ""
    model: str = ""
    stop_reason: str | None = None
    usage: Raw = NULL
    error: Raw = NULL


class _Count(Struct):
    input_tokens: int


_whole = msgspec.json.Decoder(_Whole)
_count = msgspec.json.Decoder(_Count)


class AnthropicAdapter(OpenAIAdapter):
    """Failures and their wording are those of every provider; the rest is Anthropic's."""

    kind = "anthropic"
    root_suffix = "/v1"
    surfaces = frozenset({"chat", "messages", "count_tokens", "responses"})
    native = "anthropic"

    @property
    def counter(self) -> Adapter:
        return self

    def credentials(self, secret: str) -> dict[str, str]:
        return {"x-api-key": secret}

    @property
    def fixed_headers(self) -> dict[str, str]:
        return {"anthropic-version": VERSION}

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        self.check_surface(call, route)
        if call.dialect == self.native:
            fields = call.fields.copy()
            check(fields)
            fields["model"] = route.model_json
            if output_cap is not None:
                fields["max_tokens"] = Raw(str(output_cap).encode())
            body = encode(fields)
        else:
            fields = call.fields.copy()
            policy.apply(fields, team_id)
            body = encode(anthropic_from_chat.request(fields, route.model, output_cap))
        path = "/messages/count_tokens" if call.surface == "count_tokens" else "/messages"
        return Outgoing(route.provider.url(path), self.headers(route.provider, request_id), body)

    def scanner(self, call: Call) -> Scanner:
        return PassingScanner() if call.dialect == self.native else ChatScanner()

    def usage(self, raw: bytes) -> Usage | None:
        return from_anthropic(raw)

    def as_events(self, body: bytes) -> bytes:
        """A whole message as the events of a stream. What is no message becomes an event that breaks the stream."""
        try:
            message = _object.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return b"data: " + body.replace(b"\n", b" ") + b"\n\n"
        if message.get("type") == "error" or message.get("error"):
            return _sse({"type": "error", "error": message.get("error")})
        content, stop = message.get("content") or [], message.get("stop_reason")
        usage, sequence = message.get("usage") or {}, message.get("stop_sequence")
        events = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
        for index, block in enumerate(content):
            events += _block_events(index, block)
        delta = {"stop_reason": stop, "stop_sequence": sequence}
        events += [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
        return b"".join(_sse(event) for event in events)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        if call.surface == "count_tokens":
            try:
                _count.decode(body)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadAnswer("the provider's answer counts no tokens") from error
            return Answer(body, Usage(), "default", 0)
        if content_type.startswith("text/event-stream"):
            raise BadAnswer("the provider sent a stream where a whole answer was asked for")
        try:
            whole = _whole.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadAnswer("the provider's answer is no message") from error
        if given(whole.error):
            raise BadAnswer("the provider answered 200 with an error", bytes(whole.error))
        if whole.content is None:
            raise BadAnswer("the provider's answer has no content")
        raw = bytes(whole.usage)
        usage, tier = from_anthropic(raw), tier_in(raw)
        native = call.dialect == self.native
        as_chat = b"" if native and usage is not None and usage.total_output else _as_chat(whole, usage)
        return Answer(body if native else as_chat, usage, tier, delivered(call, as_chat, usage))

    def failure(self, provider: Provider, status: int, retry_after: float | None, body: bytes) -> Failure:
        return super().failure(provider, 503 if status == OVERLOADED else status, retry_after, body)

    def in_band_failure(self, provider: Provider, error: bytes) -> Failure:
        said = read_error_object(error)
        if said.type == "overloaded_error":
            message = redact(said.message, provider.secrets) or "overloaded"
            wording = f"The provider '{provider.name}' ended the answer with an error: {message}"
            return Failure(errors.unavailable(wording, code="upstream_unavailable"), True, True, None, "overloaded")
        return super().in_band_failure(provider, error)

    def _callers_fault(self, provider: Provider, status: int, said: ProviderError) -> ApiError:
        if "prompt is too long" in said.message:
            message = redact(said.message, provider.secrets)
            return ApiError(status, message, errors.INVALID_REQUEST, "messages", "context_length_exceeded")
        return super()._callers_fault(provider, status, said)


def _sse(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), encode(event))


def _block_events(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    kind = block.get("type")
    deltas: list[dict[str, Any]] = []
    start = dict(block)
    if kind == "text":
        start["text"] = ""
        deltas = [{"type": "text_delta", "text": block.get("text") or ""}]
    elif kind == "tool_use":
        start["input"] = {}
        deltas = [{"type": "input_json_delta", "partial_json": encode(block.get("input") or {}).decode()}]
    elif kind == "thinking":
        start |= {"thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": block.get("thinking") or ""},
            {"type": "signature_delta", "signature": block.get("signature") or ""},
        ]
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _as_chat(whole: _Whole, usage: Usage | None) -> bytes:
    """A message as a chat completion. Blocks of a kind that chat lacks are passed over: none can be asked for."""
    texts, thoughts, calls, signed = [], [], [], []
    for block in whole.content or []:
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": encode(block.get("input") or {}).decode()}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind in ("thinking", "redacted_thinking"):
            signed.append(block)
            thoughts.append(str(block.get("thinking") or ""))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if calls:
        message["tool_calls"] = calls
    if signed:
        message |= {"reasoning_content": "".join(thoughts), "thinking_blocks": signed}
    choice = {"index": 0, "message": message, "finish_reason": TO_FINISH.get(whole.stop_reason or "", "stop")}
    return encode(whole_chat(whole.id, whole.model, [choice], usage))
