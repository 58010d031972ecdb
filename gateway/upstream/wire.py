"""The wire: HTTP to a provider, by pyreqwest behind a seam shaped like httpx's transport.

TransportError
├── ConnectFailed      nothing reached the provider: safe to try elsewhere
└── ConnectionLost     the provider was reached and then went away
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ClientClosedError, ConnectError, ConnectTimeoutError, PyreqwestError
from pyreqwest.response import Response

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class TransportError(Exception):
    """The message names what happened, never an address with credentials or a key."""


class ConnectFailed(TransportError):
    pass


class ConnectionLost(TransportError):
    pass


class UpstreamResponse(Protocol):
    """A provider's answer, headers first. Close it when done: closing early drops the connection, which cancels the call."""

    status: int

    def header(self, name: str) -> str | None: ...
    async def aread(self) -> bytes: ...
    async def read_chunk(self) -> bytes | None: ...
    def aiter_bytes(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class Transport(Protocol):
    """Raises `TransportError` only. Cancelling a pending call drops its connection."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse: ...
    async def stream(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse: ...
    async def get(self, url: str, headers: Mapping[str, str]) -> UpstreamResponse: ...
    async def aclose(self) -> None: ...


def _translated(error: PyreqwestError) -> TransportError:
    if isinstance(error, (ConnectError, ConnectTimeoutError)):
        kind = "timed out" if isinstance(error, ConnectTimeoutError) else "failed"
        return ConnectFailed(f"connecting to the provider {kind}")
    if isinstance(error, ClientClosedError):
        return ConnectFailed("the gateway is stopping")
    return ConnectionLost(f"the connection to the provider broke ({type(error).__name__})")


class WholeResponse:
    """An answer whose body was read with it: one await for the whole call."""

    __slots__ = ("_response", "status")

    def __init__(self, response: Response) -> None:
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._response.get_header(name)

    async def aread(self) -> bytes:
        try:
            return bytes(await self._response.bytes())
        except PyreqwestError as error:
            raise _translated(error) from error

    async def read_chunk(self) -> bytes | None:
        raise RuntimeError("this answer was read whole; use aread()")

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        yield await self.aread()

    async def aclose(self) -> None:
        return None


class StreamedResponse:
    """An answer whose body is still coming."""

    __slots__ = ("_context", "_reader", "_response", "status")

    def __init__(self, context: Any, response: Response) -> None:
        self._context = context
        self._response = response
        self._reader = response.body_reader
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._response.get_header(name)

    async def aread(self) -> bytes:
        try:
            return bytes(await self._reader.bytes())
        except PyreqwestError as error:
            raise _translated(error) from error

    async def read_chunk(self) -> bytes | None:
        """The next bytes as they arrived, or None at a proper end. Raises `ConnectionLost` when the body was cut."""
        try:
            chunk = await self._reader.read_chunk()
        except PyreqwestError as error:
            raise _translated(error) from error
        return None if chunk is None else bytes(chunk)

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        while (chunk := await self.read_chunk()) is not None:
            yield chunk

    async def aclose(self) -> None:
        await self._context.__aexit__(None, None, None)


class ReqwestTransport:
    """One client, one connection pool. Redirects are not followed, cookies not kept, a loopback never goes by a proxy."""

    def __init__(self, base_url: str, *, connect_timeout_s: float = 10.0) -> None:
        builder = (
            ClientBuilder()
            .follow_redirects(False)
            .referer(False)
            .connect_timeout(timedelta(seconds=connect_timeout_s))
            .pool_max_idle_per_host(1024)
            .pool_idle_timeout(timedelta(seconds=60))
            .tcp_keepalive(timedelta(seconds=30))
            .user_agent("metergate")
        )
        if urlsplit(base_url).hostname in _LOOPBACK:
            builder = builder.no_proxy()
        self._client: Client = builder.build()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        try:
            return WholeResponse(await self._client.post(url).headers(headers).body_bytes(body).build().send())
        except PyreqwestError as error:
            raise _translated(error) from error

    async def stream(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        context = self._client.post(url).headers(headers).body_bytes(body).build_streamed()
        try:
            return StreamedResponse(context, await context.__aenter__())
        except PyreqwestError as error:
            raise _translated(error) from error

    async def get(self, url: str, headers: Mapping[str, str]) -> UpstreamResponse:
        try:
            return WholeResponse(await self._client.get(url).headers(headers).build().send())
        except PyreqwestError as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
