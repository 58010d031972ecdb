"""POST /v1/responses: told to every provider as chat. No answer is kept, so none can be continued by its id."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from billing.usage import Usage
from gateway import tokens
from gateway.api.messages import chat_call
from gateway.api.surface import OpenAIErrors, read_count, read_fields, read_model, read_streamed
from gateway.dialects import responses, responses_answers
from gateway.dialects.chat import raw
from gateway.errors import ApiError, bad_request
from gateway.upstream.base import Adapter, Call
from gateway.upstream.translated import TranslatedAdapter, Writer

_encode = msgspec.json.Encoder().encode


class ResponsesDialect:
    name = "responses"

    def as_chat(self, call: Call) -> Call:
        fields: dict[str, Raw] = {"model": raw(call.model), **responses.request(call.fields)}
        return chat_call(call, fields)

    def answer(self, call: Call, body: bytes, usage: Usage | None) -> bytes:
        return responses_answers.response(call.fields, call.model, body, usage)

    def writer(self, call: Call) -> Writer:
        return responses_answers.ResponseWriter(call)


_DIALECT: Final = ResponsesDialect()


def speak(adapter: Adapter) -> Adapter:
    return TranslatedAdapter(adapter, _DIALECT)


class _ErrorEvent(msgspec.Struct, frozen=True):
    code: str | None
    message: str
    param: str | None
    sequence_number: int
    type: str = "error"


class Responses(OpenAIErrors):
    name = "responses"

    def read(self, body: bytes) -> Call:
        """Raises `ApiError` 400."""
        fields = read_fields(body)
        model = read_model(fields)
        responses.check_state(fields)
        if bytes(fields.get("input", b"null")) == b"null":
            raise bad_request("'input' is required.", param="input", code="missing_field")
        return Call(
            surface=self.name,
            path="/chat/completions",
            fields=fields,
            model=model,
            streamed=read_streamed(fields),
            wants_usage=True,
            choices=1,
            output_cap=read_count(fields, "max_output_tokens", least=1),
            input_tokens=tokens.estimate(fields),
            dialect="responses",
            over=speak,
        )

    def error_event(self, error: ApiError, call: Call) -> bytes:
        event = _ErrorEvent(error.code or error.type, error.message, error.param, call.told)
        return b"event: error\ndata: " + _encode(event) + b"\n\n"
