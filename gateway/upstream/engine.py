"""The bundled engine, or another copy of it elsewhere: OpenAI's dialect, and a cancel that tells the final usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from billing.usage import Usage
from gateway.dialects.reading import encode
from gateway.upstream.base import Adapter, Answer, BadAnswer, Call, Outgoing
from gateway.upstream.errors import TransportError
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.shapes import NULL, given
from gateway.upstream.usage import ENGINE_TIME, from_engine

if TYPE_CHECKING:
    from gateway.routing.provider import Provider
    from gateway.routing.routes import Route


class _Cancelled(msgspec.Struct):
    usage: Raw = NULL


class _Counted(msgspec.Struct):
    count: int


_counted = msgspec.json.Decoder(_Counted)
_cancelled = msgspec.json.Decoder(_Cancelled)
_fields = msgspec.json.Decoder(dict[str, Raw])


class EngineAdapter(OpenAIAdapter):
    kind = "engine"
    root_suffix = "/v1"
    caches_prefixes = True

    @property
    def counter(self) -> Adapter:
        return EngineCounter()

    def usage(self, raw: bytes) -> Usage | None:
        return from_engine(raw)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        """Engine time is what a request costs us: it is counted, and the caller is not told."""
        answer = super().read_answer(call, content_type, body)
        if answer.usage is None or b'"metergate"' not in answer.body:
            return answer
        try:
            fields = _fields.decode(answer.body)
            usage = _fields.decode(fields["usage"])
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadAnswer("the engine's usage cannot be read") from error
        usage.pop(ENGINE_TIME, None)
        fields["usage"] = Raw(encode(usage))
        return replace(answer, body=encode(fields))

    async def cancel(self, provider: Provider, request_id: str) -> Usage | None:
        """Frees the request's pages at once. None when the engine no longer knows the request, or is gone."""
        url = provider.url(f"/requests/{request_id}/cancel")
        try:
            response = await provider.transport.post(url, self.headers(provider, request_id), b"{}")
            body = await response.aread()
            await response.aclose()
            if response.status != 200:
                return None
            answer = _cancelled.decode(body)
        except (TransportError, msgspec.DecodeError):
            return None
        return self.usage(bytes(answer.usage)) if given(answer.usage) else None

    @property
    def counts_text(self) -> bool:
        return True

    async def count_text(self, provider: Provider, model: str, text: str) -> int | None:
        """For an engine that cannot say what a request used, as vLLM and SGLang cannot: by its `/tokenize`."""
        body = encode({"model": model, "prompt": text, "add_special_tokens": False})
        try:
            response = await provider.transport.post(_tokenize(provider), self.headers(provider, ""), body)
            answer = await response.aread()
            await response.aclose()
            return _counted.decode(answer).count if response.status == 200 else None
        except (TransportError, msgspec.DecodeError):
            return None


def _tokenize(provider: Provider) -> str:
    """Beside `/v1`, as vLLM has it."""
    return provider.url("/tokenize").removesuffix("/v1/tokenize") + "/tokenize"


class EngineCounter(EngineAdapter):
    """Counts a prompt by the engine's own tokenizer and template (`/tokenize`, as vLLM has it)."""

    surfaces = frozenset({"count_tokens"})

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        fields = {name: call.fields[name] for name in ("messages", "tools") if name in call.fields}
        body = encode({"model": route.model, **fields})
        return Outgoing(_tokenize(route.provider), self.headers(route.provider, request_id), body)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        try:
            return Answer(encode({"input_tokens": _counted.decode(body).count}), Usage(), "default", 0)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadAnswer("the engine's answer counts no tokens") from error
