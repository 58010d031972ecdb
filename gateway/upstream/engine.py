"""The bundled engine, or another copy of it elsewhere: OpenAI's dialect, and a cancel that tells the final usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from billing.usage import Usage
from gateway.sse import NULL, given
from gateway.upstream.errors import TransportError
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.usage import from_openai

if TYPE_CHECKING:
    from gateway.routing.routes import Provider


class _Cancelled(msgspec.Struct):
    usage: Raw = NULL


_cancelled = msgspec.json.Decoder(_Cancelled)


class EngineAdapter(OpenAIAdapter):
    kind = "engine"
    root_suffix = "/v1"

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
        return from_openai(bytes(answer.usage)) if given(answer.usage) else None
