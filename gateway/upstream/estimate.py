"""A count of tokens where the provider counts none: our own estimate, which errs upward. Nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from billing.usage import Usage
from gateway import tokens
from gateway.dialects.reading import encode
from gateway.upstream.base import Answer, Call, Outgoing

if TYPE_CHECKING:
    from gateway.routing.routes import Route
    from gateway.upstream.wire import UpstreamResponse


class OwnAnswer:
    """What the gateway says itself, behind the seams of a transport and of its response."""

    status = 200

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        return self

    async def get(self, url: str, headers: Mapping[str, str]) -> UpstreamResponse:
        return self

    def header(self, name: str) -> str | None:
        return None

    async def read_chunk(self) -> bytes | None:
        body, self._body = self._body, None
        return body

    @property
    def ended(self) -> bool:
        return self._body is None

    async def aread(self) -> bytes:
        return self._body or b""

    async def aclose(self) -> None:
        return None


def estimate(call: Call, route: Route) -> Outgoing:
    """An answer in place of a request. The count is of the chat form, as the provider would be told."""
    body = encode({"input_tokens": tokens.estimate(call.fields)})
    return Outgoing(route.provider_name, {}, encode(call.fields), OwnAnswer(body))


def read_estimate(body: bytes) -> Answer:
    return Answer(body, Usage(), "default", 0)
