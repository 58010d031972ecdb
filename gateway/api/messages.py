"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's surface, its errors included."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from billing.usage import Usage
from gateway import tokens
from gateway.api.caps import PLAIN, read_cap
from gateway.api.surface import read_fields, read_model, read_streamed
from gateway.dialects import anthropic_answers, anthropic_to_chat
from gateway.dialects.chat import raw
from gateway.errors import ApiError, bad_request
from gateway.upstream.base import Adapter, Call
from gateway.upstream.translated import TranslatedAdapter, Writer

DIALECT: Final = "anthropic"
TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Error(msgspec.Struct, frozen=True):
    type: str
    message: str


class _Envelope(msgspec.Struct, frozen=True):
    error: _Error
    type: str = "error"


_encode = msgspec.json.Encoder().encode


class AnthropicErrors:
    def error_body(self, error: ApiError) -> bytes:
        return _encode(_Envelope(_Error(TYPES.get(error.status, "api_error"), error.message)))

    def error_event(self, error: ApiError, call: Call) -> bytes:
        return b"event: error\ndata: " + self.error_body(error) + b"\n\n"


class MessagesDialect:
    name = DIALECT

    def as_chat(self, call: Call) -> Call:
        fields: dict[str, Raw] = {"model": raw(call.model), **anthropic_to_chat.request(call.fields)}
        return chat_call(call, fields)

    def answer(self, call: Call, body: bytes, usage: Usage | None) -> bytes:
        return anthropic_answers.message(body, usage, call.model)

    def writer(self, call: Call) -> Writer:
        return anthropic_answers.MessageWriter(call.model)


def chat_call(call: Call, fields: dict[str, Raw]) -> Call:
    """The same call, told in chat."""
    return Call(
        surface=call.surface,
        path=call.path,
        fields=fields,
        model=call.model,
        streamed=call.streamed,
        wants_usage=call.wants_usage,
        choices=call.choices,
        output_cap=call.output_cap,
        input_tokens=call.input_tokens,
    )


_DIALECT: Final = MessagesDialect()


def speak(adapter: Adapter) -> Adapter:
    """Untouched to a provider of the same dialect, translated to any other."""
    return adapter if adapter.native == DIALECT else TranslatedAdapter(adapter, _DIALECT)


def count(adapter: Adapter) -> Adapter:
    return speak(adapter.counter)


def _messages(body: bytes) -> tuple[dict[str, Raw], str]:
    fields = read_fields(body)
    model = read_model(fields)
    messages = bytes(fields.get("messages", b""))
    if not messages.startswith(b"[") or not messages[1:-1].strip():
        raise bad_request("'messages' must be a list of at least one message.", param="messages", code="missing_field")
    return fields, model


class Messages(AnthropicErrors):
    name = "messages"

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400."""
        fields, model = _messages(body)
        cap = read_cap(fields, PLAIN, least=1)
        if cap is None:
            raise bad_request("'max_tokens' is required.", param="max_tokens", code="missing_field")
        return Call(
            surface=self.name,
            path="/chat/completions",
            fields=fields,
            model=model,
            streamed=read_streamed(fields),
            wants_usage=True,
            choices=1,
            output_cap=cap,
            input_tokens=tokens.estimate(fields),
            dialect=DIALECT,
            over=speak,
        )


class CountTokens(AnthropicErrors):
    """Counting costs nothing: nothing is reserved but the request itself, and the row that it leaves has no tokens."""

    name = "count_tokens"

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400."""
        fields, model = _messages(body)
        return Call(
            surface=self.name,
            path="/chat/completions",
            fields=fields,
            model=model,
            streamed=False,
            wants_usage=False,
            choices=1,
            output_cap=0,
            speaks=False,
            input_tokens=0,
            dialect=DIALECT,
            over=count,
        )
