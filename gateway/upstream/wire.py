"""The wire: HTTP to a provider behind a seam shaped like httpx's transport, and how a provider gets its transport.

The hot path is `http1.py`, on the event loop itself. A provider that is reached through an egress proxy (`HTTPS_PROXY` and its
kin) goes by `reqwest.py`, which speaks to proxies; the seam is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from gateway.upstream.http1 import Http1Transport

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class UpstreamResponse(Protocol):
    """A provider's answer, headers first. Close it when done: closing early drops the connection, which cancels the call."""

    status: int

    def header(self, name: str) -> str | None:
        """The first value of `name`, given in lower case."""
        ...

    async def read_chunk(self) -> bytes | None:
        """The next bytes as they arrived, or None at a proper end. Raises `ConnectionLost` when the body was cut."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it is known that nothing is left to be read."""
        ...

    async def aread(self) -> bytes: ...
    async def aclose(self) -> None: ...


class Transport(Protocol):
    """Raises `TransportError` only. Cancelling a pending call drops its connection."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse: ...
    async def get(self, url: str, headers: Mapping[str, str]) -> UpstreamResponse: ...
    async def aclose(self) -> None: ...


def needs_proxy(url: str) -> bool:
    """Whether the environment sends calls to `url` through a proxy."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return host not in _LOOPBACK and parts.scheme in getproxies() and not proxy_bypass(host)


def transport_for(url: str, *, connect_timeout_s: float) -> Transport:
    """The transport of a provider at `url`. Call it with a running loop."""
    if needs_proxy(url):
        from gateway.upstream.reqwest import ReqwestTransport

        return ReqwestTransport(connect_timeout_s=connect_timeout_s)
    return Http1Transport(connect_timeout_s=connect_timeout_s)
