"""HTTP/1.1 to a provider on the gateway's own event loop: httptools parses, uvloop moves the bytes, nothing crosses a thread.

This is the hot path's transport. Everything that one read of the socket brought is handed on as one piece, so a burst of two
hundred events costs one wake-up; a client that parses in other threads pays a hand-over per chunk (the figures are in
docs/decisions/0001-upstream-client.md). A connection serves one call at a time and returns to the pool only after a complete
answer; closing a response early, or cancelling the call, drops its connection: so a provider learns that nobody listens any more.

A request is written once and never replayed: whether to try again is the router's decision, and a new attempt in the journal.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from gateway.keepalive import ask_whether_alive
from gateway.upstream.errors import ConnectFailed, ConnectionLost, StaleConnection

IDLE_S: Final = 90.0
"""How long a pooled connection may wait, as in Go and hyper; a provider that closes it sooner takes it out by closing.

At 30 s, 32 streams that began together after a pause connected anew first: the slowest first chunk came after 15 ms, not 10."""

BUFFER_HIGH: Final = 262_144
"""Unread bytes of one answer above which its socket is not read: a slow caller slows the provider, not our memory."""

_MAX_HEADER_BYTES: Final = 65_536
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_MOST_TARGETS: Final = 64


class Origin(NamedTuple):
    """Where connections go. `host_header` is what the provider reads, with the port where it is no default one."""

    host: str
    port: int
    tls: bool
    host_header: str


class Connection(asyncio.Protocol):
    """One socket to one origin, and the answer that is arriving on it."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self.closed = False
        self.rested = False
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._broken: str | None = None
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.heard = False
        self._surplus = False
        self._headers_bytes = 0
        self._headers_done = False
        self._framed = False
        self._busy = False
        self._keep_alive = False
        self._until_eof = False
        self._pieces: list[bytes] = []
        self._unread = 0

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        ask_whether_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self._abort("the provider spoke out of turn")
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._abort("the provider's answer is not HTTP/1.1")
        if self._unread > BUFFER_HIGH and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._until_eof and exc is None:
            self.complete = True
        elif not self.complete:
            self._broken = self._broken or "the provider closed the connection"
        self._wake()

    # -- what the parser calls ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """What comes behind an answer belongs to nothing: it is not read, and the connection is not used again."""
        self._surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._surplus:
            return
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > _MAX_HEADER_BYTES:
            self._abort("the provider's headers are too large")
        name = name.lower()
        if name in _FRAMING:
            self._framed = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._surplus:
            return
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, 103 Early Hints: the answer is still to come
            self.headers.clear()
            return
        self.status = status
        self._keep_alive = self._parser.should_keep_alive()
        self._until_eof = not self._framed and status not in (204, 304)
        self._headers_done = True

    def on_body(self, body: bytes) -> None:
        if self._surplus:
            return
        self._pieces.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        if self._headers_done:
            self.complete = True

    # -- what a call does ---------------------------------------------------------------------------------------------

    async def send(self, request: bytes) -> None:
        """Writes `request` and waits for the answer's headers. Raises `ConnectionLost`."""
        assert not self._busy and self._transport is not None
        self._busy = True
        self._transport.write(request)
        while not self._headers_done:
            await self._arrival()

    async def read(self) -> bytes | None:
        """All that has arrived and was not read, waiting for the first byte; None at the answer's proper end."""
        while not self._pieces:
            if self.complete:
                return None
            await self._arrival()
        return self.at_hand()

    def at_hand(self) -> bytes | None:
        """The same without waiting: None where nothing lies here."""
        pieces = self._pieces
        if not pieces:
            return None
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if self._paused and self._transport is not None and not self.closed:
            self._paused = False
            self._transport.resume_reading()
        return data

    @property
    def ended(self) -> bool:
        """Whether all of the answer has come and been read."""
        return self.complete and not self._pieces

    @property
    def reusable(self) -> bool:
        whole = self.complete and not self._surplus and not self._until_eof
        return whole and self._keep_alive and not self.closed and self._broken is None

    def rest(self) -> None:
        """Back to idle: the next call may use it."""
        self._begin()
        self.rested = True
        self.idle_since = time.monotonic()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def drop(self) -> None:
        self._broken = self._broken or "the call was given up"
        if self._transport is not None:
            self._transport.abort()

    async def _arrival(self) -> None:
        if self._broken is not None:
            raise ConnectionLost(self._broken)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _abort(self, why: str) -> None:
        self._broken = self._broken or why
        if self._transport is not None:
            self._transport.abort()


class Http1Response:
    """An answer, headers first; see `gateway.upstream.wire.UpstreamResponse`."""

    __slots__ = ("_connection", "_inflate", "_pool", "status")

    def __init__(self, connection: Connection, pool: Http1Transport) -> None:
        self._connection: Connection | None = connection
        self._pool = pool
        self.status = connection.status
        encoding = self.header("content-encoding")
        self._inflate = zlib.decompressobj(wbits=47) if encoding in ("gzip", "x-gzip", "deflate") else None

    def header(self, name: str) -> str | None:
        """The first value of `name`, given in lower case."""
        wanted = name.encode("latin-1")
        if self._connection is None:
            return None
        for key, value in self._connection.headers:
            if key == wanted:
                return value.decode("latin-1")
        return None

    async def read_chunk(self) -> bytes | None:
        """The next bytes as they arrived, or None at a proper end. Raises `ConnectionLost` when the body was cut."""
        connection = self._connection
        if connection is None:
            return None
        while (data := connection.at_hand() or await connection.read()) is not None:
            if self._inflate is None:
                return data
            try:
                if plain := self._inflate.decompress(data):
                    return plain
            except zlib.error as error:
                raise ConnectionLost("the provider's compressed answer is damaged") from error
        return None

    @property
    def ended(self) -> bool:
        return self._connection is None or self._connection.ended

    async def aread(self) -> bytes:
        pieces = []
        while (piece := await self.read_chunk()) is not None:
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def aclose(self) -> None:
        """Gives the connection back when the answer is complete, drops it when it is not. May be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)


class Http1Transport:
    """The connections to one provider, newest first. Redirects are not followed and no cookie is kept."""

    def __init__(self, *, connect_timeout_s: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._idle: dict[Origin, list[Connection]] = {}
        self._targets: dict[str, tuple[Origin, str]] = {}
        self._stopped = False

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Coroutine[Any, Any, Http1Response]:
        return self._call("POST", url, headers, body)

    def get(self, url: str, headers: Mapping[str, str]) -> Coroutine[Any, Any, Http1Response]:
        return self._call("GET", url, headers, b"")

    async def aclose(self) -> None:
        self._stopped = True
        for connections in self._idle.values():
            for connection in connections:
                connection.drop()
        self._idle.clear()

    def give_back(self, connection: Connection) -> None:
        if connection.reusable and not self._stopped:
            connection.rest()
            self._idle.setdefault(connection.origin, []).append(connection)
        elif not connection.closed:
            connection.drop()

    async def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Http1Response:
        target = self._targets.get(url)
        if target is None:
            target = _parse(url)
            if len(self._targets) < _MOST_TARGETS:  # addresses that name a request come once and are not kept
                self._targets[url] = target
        origin, path = target
        head = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if head.count("\n") != len(headers) or head.count("\r") != len(headers):
            raise ConnectFailed("a request header holds a line break")
        request = (
            f"{method} {path} HTTP/1.1\r\nhost: {origin.host_header}\r\n{head}content-length: {len(body)}\r\n\r\n"
        ).encode("latin-1", "replace")
        connection = self._take_idle(origin) or await self._connect(origin)
        try:
            await connection.send(request + body)
        except ConnectionLost as lost:
            connection.drop()
            if connection.rested and not connection.heard:
                self._forget(origin)
                raise StaleConnection(str(lost)) from lost
            raise
        except BaseException:
            connection.drop()
            raise
        return Http1Response(connection, self)

    def _forget(self, origin: Origin) -> None:
        """One that rested was dead, so those that rest with it are likely to be: whoever comes next connects anew."""
        for connection in self._idle.pop(origin, ()):
            connection.drop()

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        oldest = time.monotonic() - IDLE_S
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.idle_since >= oldest:
                return connection
            connection.drop()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        if self._stopped:
            raise ConnectFailed("the gateway is stopping")
        if origin.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(origin),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.tls else None,
                    server_hostname=origin.host if origin.tls else None,
                )
        except TimeoutError as error:
            raise ConnectFailed("connecting to the provider timed out") from error
        except ssl.SSLError as error:
            raise ConnectFailed(f"the provider's TLS certificate was refused ({error.reason})") from error
        except OSError as error:
            raise ConnectFailed("connecting to the provider failed") from error
        return connection


def _parse(url: str) -> tuple[Origin, str]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConnectFailed("the provider's base_url is no http or https address")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    header = host if port == (443 if tls else 80) else f"{host}:{port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.hostname, port, tls, header), path
