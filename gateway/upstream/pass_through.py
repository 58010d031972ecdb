"""OpenAI's other endpoints at a compatible server: the body goes as it came, the answer comes as it is, its usage is read."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from billing.usage import Usage
from gateway.upstream import policy
from gateway.upstream.base import Adapter, Answer, BadAnswer, Call, Outgoing
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.shapes import NULL, given
from gateway.upstream.usage import Counts

if TYPE_CHECKING:
    from gateway.routing.routes import Route

TYPES: Final = re.compile(
    r"(audio|image|text|application)/[a-z0-9.+-]{1,60}(; ?charset=[a-z0-9-]{1,20})?", re.IGNORECASE
)
"""What a provider may call its answer; anything else is called bytes."""
MOST_SECONDS: Final = 10_000_000


class _InputDetails(msgspec.Struct):
    audio_tokens: int | None = None
    image_tokens: int | None = None
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The forms of OpenAI's audio and images, and of the rerankers."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    total_tokens: int | None = None
    input_token_details: _InputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    seconds: float | None = None


class _Whole(msgspec.Struct):
    usage: Raw = NULL
    error: Raw = NULL
    data: list[Raw] | None = None


_whole = msgspec.json.Decoder(_Whole)
_usage = msgspec.json.Decoder(_Usage, strict=False)
_NOTHING: Final = _InputDetails()


class PassThrough(OpenAIAdapter):
    """`inner` is the provider's own adapter: only one of OpenAI's dialect has these endpoints."""

    surfaces = frozenset({"speech", "transcriptions", "translations", "images", "rerank", "moderations"})

    def __init__(self, inner: Adapter) -> None:
        self._inner = inner

    def check_surface(self, call: Call, route: Route) -> None:
        if self._inner.native != "openai":
            self._inner.check_surface(call, route)

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        self.check_surface(call, route)
        form = call.form
        if form is None:
            return super().prepare(call, route, request_id=request_id, output_cap=None, team_id=team_id)
        policy.refuse(call.fields)
        headers = {**self.headers(route.provider, request_id), "content-type": form.content_type}
        return Outgoing(self.address(route, call.path), headers, form.before + route.model.encode() + form.after)

    def address(self, route: Route, path: str) -> str:
        return (
            self._inner.address(route, path) if isinstance(self._inner, OpenAIAdapter) else super().address(route, path)
        )

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        """Raises `BadAnswer`."""
        if not content_type.startswith("application/json"):
            kind = content_type if TYPES.fullmatch(content_type) else "application/octet-stream"
            return Answer(body, None, "default", 0, kind)
        try:
            whole = _whole.decode(body)
            reported = _usage.decode(whole.usage) if given(whole.usage) else None
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadAnswer("the provider's answer is no JSON object with a readable usage") from error
        if given(whole.error):
            raise BadAnswer("the provider answered 200 with an error", bytes(whole.error))
        usage = None if reported is None else _counted(call, reported)
        if usage is None and call.surface == "images" and whole.data:
            usage = Usage(image_output=len(whole.data))
        return Answer(body, usage, "default", 0)


def _counted(call: Call, reported: _Usage) -> Usage | None:
    """Tokens by class where the provider counts them, else seconds of sound; None where it says neither."""
    counts = Counts()
    if reported.seconds is not None:
        whole_s = math.ceil(reported.seconds) if abs(reported.seconds) < MOST_SECONDS else MOST_SECONDS + 1
        return Usage(audio_input=counts.take("seconds", whole_s, MOST_SECONDS), flaw=counts.flaw)
    named = (reported.input_tokens, reported.prompt_tokens, reported.total_tokens)
    total = next((each for each in named if each is not None), None)
    if total is None:
        return None
    details = reported.input_token_details or reported.input_tokens_details or _NOTHING
    total = counts.take("input_tokens", total)
    audio = counts.take("audio input tokens", details.audio_tokens, total)
    image = counts.take("image input tokens", details.image_tokens, total - audio)
    cached = counts.take("cached tokens", details.cached_tokens, total - audio - image)
    output = counts.take("output_tokens", reported.output_tokens)
    made = call.surface == "images"
    return Usage(
        input=total - audio - image - cached,
        cache_read=cached,
        audio_input=audio,
        image_input=image,
        image_output=output if made else 0,
        output=0 if made else output,
        flaw=counts.flaw,
    )
