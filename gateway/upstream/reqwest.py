"""The transport for providers behind an egress proxy: pyreqwest, which speaks to proxies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ClientClosedError, ConnectError, ConnectTimeoutError, PyreqwestError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import Response

from gateway.upstream.errors import ConnectFailed, ConnectionLost, TransportError
from gateway.upstream.wire import UpstreamResponse


def _translated(error: PyreqwestError) -> TransportError:
    if isinstance(error, (ConnectError, ConnectTimeoutError)):
        kind = "timed out" if isinstance(error, ConnectTimeoutError) else "failed"
        return ConnectFailed(f"connecting to the provider {kind}")
    if isinstance(error, ClientClosedError):
        return ConnectFailed("the gateway is stopping")
    return ConnectionLost(f"the connection to the provider broke ({type(error).__name__})")


class ReqwestResponse:
    """An answer whose body is still coming."""

    __slots__ = ("_context", "_reader", "_response", "status")

    def __init__(self, context: Any, response: Response) -> None:
        self._context = context
        self._response = response
        self._reader = response.body_reader
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._response.get_header(name)

    @property
    def ended(self) -> bool:
        return False  # the end is only learned by reading on

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

    async def aclose(self) -> None:
        await self._context.__aexit__(None, None, None)


class ReqwestTransport:
    """One client, one connection pool, through the environment's proxies. Redirects are not followed, cookies not kept."""

    def __init__(self, *, connect_timeout_s: float = 10.0) -> None:
        self._client: Client = (
            ClientBuilder()
            .follow_redirects(False)
            .referer(False)
            .connect_timeout(timedelta(seconds=connect_timeout_s))
            .pool_max_idle_per_host(1024)
            .pool_idle_timeout(timedelta(seconds=60))
            .tcp_keepalive(timedelta(seconds=30))
            .user_agent("metergate")
            .build()
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        return await self._call(self._client.post(url).headers(headers).body_bytes(body))

    async def get(self, url: str, headers: Mapping[str, str]) -> UpstreamResponse:
        return await self._call(self._client.get(url).headers(headers))

    async def _call(self, request: RequestBuilder) -> UpstreamResponse:
        """The read buffer is off: a client that fills it first holds back the first events of a slow stream."""
        context = request.streamed_read_buffer_limit(0).build_streamed()
        try:
            return ReqwestResponse(context, await context.__aenter__())
        except PyreqwestError as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        await self._client.close()
