"""Google's native generateContent API. Its answers, whole or as a stream, are one shape: candidates with parts."""

from __future__ import annotations

import base64
import secrets
import struct
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from billing.usage import Usage
from gateway import errors
from gateway.dialects import gemini_from_chat
from gateway.dialects.chat import Json
from gateway.dialects.reading import encode
from gateway.errors import ApiError, bad_request
from gateway.sse import StreamBroken, payload_of
from gateway.upstream import policy
from gateway.upstream.base import Adapter, Answer, BadAnswer, Call, Failure, Outgoing, delivered
from gateway.upstream.chat_answers import whole_chat
from gateway.upstream.events import EventScanner, Scanner
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.redact import ProviderError, read_error
from gateway.upstream.shapes import NULL, given
from gateway.upstream.usage import Counts, shown

if TYPE_CHECKING:
    from gateway.routing.provider import Provider
    from gateway.routing.routes import Route

FINISH: Final = {"STOP": "stop", "MAX_TOKENS": "length", "MALFORMED_FUNCTION_CALL": "stop"}
"""Every other reason is one of Google's for holding an answer back."""
KEY_REFUSED: Final = ("API_KEY_INVALID", "API key not valid", "API key expired")
EMBEDDING_FIELDS: Final = frozenset({"model", "input", "dimensions", "encoding_format", "user"})


class _Modality(Struct):
    modality: str = ""
    tokenCount: int | None = None


class _Usage(Struct):
    promptTokenCount: int | None = None
    cachedContentTokenCount: int | None = None
    candidatesTokenCount: int | None = None
    thoughtsTokenCount: int | None = None
    toolUsePromptTokenCount: int | None = None
    totalTokenCount: int | None = None
    promptTokensDetails: list[_Modality] | None = None
    cacheTokensDetails: list[_Modality] | None = None
    candidatesTokensDetails: list[_Modality] | None = None


_usage = msgspec.json.Decoder(_Usage)


def _of(details: list[_Modality] | None, modality: str) -> int:
    return sum(each.tokenCount or 0 for each in details or () if each.modality == modality)


def from_gemini(raw: bytes) -> Usage | None:
    """Cached tokens are inside the prompt, thoughts stand beside the candidates. Text, pictures and video in a prompt have
    one price; audio has its own. None when `raw` counts nothing at all.
    """
    try:
        said = _usage.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if said.promptTokenCount is None and said.candidatesTokenCount is None and said.thoughtsTokenCount is None:
        return None
    counts = Counts()
    prompt = counts.take("promptTokenCount", said.promptTokenCount)
    cached = counts.take("cachedContentTokenCount", said.cachedContentTokenCount, prompt)
    heard = max(0, _of(said.promptTokensDetails, "AUDIO") - _of(said.cacheTokensDetails, "AUDIO"))
    heard = counts.take("audio tokens", heard, prompt - cached)
    spoken = counts.take("candidatesTokenCount", said.candidatesTokenCount)
    thoughts = counts.take("thoughtsTokenCount", said.thoughtsTokenCount)
    audio = counts.take("audio output tokens", _of(said.candidatesTokensDetails, "AUDIO"), spoken)
    drawn = counts.take("image output tokens", _of(said.candidatesTokensDetails, "IMAGE"), spoken - audio)
    used_by_tools = counts.take("toolUsePromptTokenCount", said.toolUsePromptTokenCount)
    parts = prompt + used_by_tools + spoken + thoughts
    if said.totalTokenCount is not None and said.totalTokenCount != parts:
        counts.mark(f"totalTokenCount is {shown(said.totalTokenCount)}, but its parts add up to {parts}")
    return Usage(
        input=prompt - cached - heard + used_by_tools,
        cache_read=cached,
        audio_input=heard,
        output=spoken - audio - drawn + thoughts,
        audio_output=audio,
        image_output=drawn,
        reasoning=thoughts,
        flaw=counts.flaw,
    )


class _Call(Struct):
    name: str = ""
    args: Json | None = None
    id: str | None = None


class _Part(Struct):
    text: str | None = None
    thought: bool = False
    functionCall: _Call | None = None
    thoughtSignature: str | None = None


class _Content(Struct):
    parts: list[_Part] | None = None


class _Candidate(Struct):
    index: int = 0
    content: _Content | None = None
    finishReason: str | None = None


class _Feedback(Struct):
    blockReason: str | None = None


class _Response(Struct):
    candidates: list[_Candidate] | None = None
    promptFeedback: _Feedback | None = None
    usageMetadata: Raw = NULL
    modelVersion: str = ""
    responseId: str = ""
    error: Raw = NULL


class _Embedding(Struct):
    values: list[float]


class _Embeddings(Struct):
    embeddings: list[_Embedding]
    usageMetadata: Raw = NULL


class _Counted(Struct):
    totalTokens: int


class _EmbeddingInput(Struct):
    input: str | list[str]
    dimensions: int | None = None


_response = msgspec.json.Decoder(_Response)
_embeddings = msgspec.json.Decoder(_Embeddings)
_counted = msgspec.json.Decoder(_Counted)
_input = msgspec.json.Decoder(_EmbeddingInput)


class GeminiAdapter(OpenAIAdapter):
    kind = "gemini"
    root_suffix = "/v1beta"
    surfaces = frozenset({"chat", "messages", "count_tokens", "responses", "embeddings"})
    native = "gemini"

    @property
    def counter(self) -> Adapter:
        return self

    def credentials(self, secret: str) -> dict[str, str]:
        return {"x-goog-api-key": secret}

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        self.check_surface(call, route)
        name = route.model if "/" in route.model else f"models/{route.model}"
        body: Json
        if call.surface == "embeddings":
            method, body = "batchEmbedContents", _embedding_request(call, name)
        else:
            fields = call.fields.copy()
            policy.apply(fields, team_id)
            body = gemini_from_chat.request(fields, output_cap)
            method = "streamGenerateContent?alt=sse" if call.streamed else "generateContent"
            if call.surface == "count_tokens":
                method, body = "countTokens", {"generateContentRequest": {"model": name, **body}}
        url = route.provider.url(f"/{quote(name)}:{method}")
        return Outgoing(url, self.headers(route.provider, request_id), encode(body))

    def scanner(self, call: Call) -> Scanner:
        return ChatScanner(call.choices)

    def as_events(self, body: bytes) -> bytes:
        return b"data: " + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"

    def usage(self, raw: bytes) -> Usage | None:
        return from_gemini(raw)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        try:
            if call.surface == "embeddings":
                return _read_embeddings(call, body)
            if call.surface == "count_tokens":
                return Answer(encode({"input_tokens": _counted.decode(body).totalTokens}), Usage(), "default", 0)
            said = _response.decode(body)
        except (msgspec.DecodeError, RecursionError, OverflowError, struct.error) as error:
            raise BadAnswer("the provider's answer is none of Gemini's") from error
        if given(said.error):
            raise BadAnswer("the provider answered 200 with an error", bytes(said.error))
        if said.candidates is None and said.promptFeedback is None:
            raise BadAnswer("the provider's answer has no candidates")
        usage = from_gemini(bytes(said.usageMetadata)) if given(said.usageMetadata) else None
        choices = [_choice(each) for each in said.candidates or [_Candidate(finishReason="SAFETY")]]
        answer = encode(whole_chat(said.responseId, said.modelVersion, choices, usage))
        return Answer(answer, usage, "default", delivered(call, answer, usage))

    def failure(self, provider: Provider, status: int, retry_after: float | None, body: bytes) -> Failure:
        """Google refuses a wrong key with 400."""
        wrong_key = status == 400 and any(words in read_error(body).message for words in KEY_REFUSED)
        return super().failure(provider, 401 if wrong_key else status, retry_after, body)

    def _callers_fault(self, provider: Provider, status: int, said: ProviderError) -> ApiError:
        error = super()._callers_fault(provider, status, said)
        if "exceeds the maximum number of tokens" in said.message:
            return ApiError(status, error.message, errors.INVALID_REQUEST, "messages", "context_length_exceeded")
        error.code = None if error.code is not None and error.code.isdigit() else error.code
        return error


def _finish(candidate: _Candidate, calls: bool) -> str | None:
    if candidate.finishReason is None:
        return None
    finish = FINISH.get(candidate.finishReason, "content_filter")
    return "tool_calls" if calls and finish == "stop" else finish


def _tool_call(part: _Part) -> Json:
    call = part.functionCall
    assert call is not None
    made: Json = {
        "id": call.id or f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": encode(call.args or {}).decode()},
    }
    if part.thoughtSignature is not None:
        made["extra_content"] = {"google": {"thought_signature": part.thoughtSignature}}
    return made


def _choice(candidate: _Candidate) -> Json:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for part in (candidate.content.parts if candidate.content is not None else None) or []:
        if part.functionCall is not None:
            calls.append(_tool_call(part))
        elif part.text is not None:
            (thoughts if part.thought else texts).append(part.text)
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return {"index": candidate.index, "message": message, "finish_reason": _finish(candidate, bool(calls)) or "stop"}


def _embedding_request(call: Call, name: str) -> Json:
    for field in call.fields:
        if field not in EMBEDDING_FIELDS:
            raise bad_request(f"'{field[:100]}' cannot be passed to a Gemini model.", param=field[:100])
    try:
        asked = _input.decode(encode(call.fields))
    except msgspec.DecodeError as error:
        raise bad_request("'input' must be a text or a list of texts for a Gemini model.", param="input") from error
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    requests: list[Json] = [{"model": name, "content": {"parts": [{"text": text}]}} for text in texts]
    if asked.dimensions is not None:
        for request in requests:
            request["outputDimensionality"] = asked.dimensions
    return {"requests": requests}


def _read_embeddings(call: Call, body: bytes) -> Answer:
    said = _embeddings.decode(body)
    usage = from_gemini(bytes(said.usageMetadata)) if given(said.usageMetadata) else None
    coded = bytes(call.fields.get("encoding_format", b"")) == b'"base64"'
    data: list[Json] = []
    for index, each in enumerate(said.embeddings):
        values: Any = each.values
        if coded:
            values = base64.b64encode(struct.pack(f"<{len(each.values)}f", *each.values)).decode()
        data.append({"object": "embedding", "index": index, "embedding": values})
    total = call.input_tokens if usage is None else usage.total_input
    answer = {
        "object": "list",
        "data": data,
        "model": call.model,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }
    return Answer(encode(answer), usage, "default", 0)


class ChatScanner(EventScanner):
    """Each event is a whole response with the next parts; the last has the reason why it ended. There is no end mark."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self._choices = choices
        self._calls: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._reported: bytes | None = None

    @property
    def usage(self) -> bytes | None:
        return self._reported

    def take(self, event: bytes) -> bytes:
        data = payload_of(event)
        if not data.strip():
            return b""
        try:
            said = _response.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamBroken(f"an event that is none of Gemini's: {error}") from error
        if given(said.error):
            self.error, self.done = bytes(said.error), True
            return b""
        self.writer.id = self.writer.id or said.responseId
        self.writer.model = self.writer.model or said.modelVersion
        if given(said.usageMetadata) and from_gemini(bytes(said.usageMetadata)) is not None:
            self._reported = bytes(said.usageMetadata)
        blocked = said.promptFeedback is not None and said.promptFeedback.blockReason is not None
        candidates = said.candidates or ([_Candidate(finishReason="SAFETY")] if blocked else [])
        return b"".join(self._candidate(each) for each in candidates)

    def _candidate(self, candidate: _Candidate) -> bytes:
        index = candidate.index
        out = [self._part(part, index) for part in (candidate.content.parts if candidate.content else None) or []]
        finish = _finish(candidate, index in self._calls)
        if finish is not None:
            self._reasons[index] = finish
            self.finished = len(self._reasons) >= self._choices
        return b"".join(out)

    def end(self) -> bytes:
        """Only now is a reason the last: some models give one with every part."""
        rest = super().end()
        return rest + b"".join(
            self.writer.write({}, index=index, finish="tool_calls" if index in self._calls and why == "stop" else why)
            for index, why in self._reasons.items()
        )

    def _part(self, part: _Part, index: int) -> bytes:
        if part.functionCall is not None:
            place = self._calls.get(index, 0)
            self._calls[index] = place + 1
            call = {"index": place, **_tool_call(part)}
            self.note(call["function"]["arguments"])
            return self.writer.write({"tool_calls": [call]}, index=index)
        if not part.text:
            return b""
        self.note(part.text)
        return self.writer.write({"reasoning_content" if part.thought else "content": part.text}, index=index)
