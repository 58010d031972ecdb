"""One connection to a Redis or Valkey for a whole process: a command is written at once, and answers come back in order.

A pool makes a burst of requests wait for each other's round trips, and a wait for a connection looks like a server that does not
answer. Here nobody waits but for the server, and a busy event loop is not taken for a slow one: before an answer counts as
late, whatever lies in the socket is read.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from typing import Any, Final, cast

from redis.asyncio.connection import SSLConnection, parse_url

from gateway.admission.resp import ErrorReply, Parser, command

CONNECT_S: Final = 1.0
GRACE_S: Final = 0.01
"""After a late answer was noticed, the loop has this long to read what has come."""
PATIENCE: Final = 5
"""A server that goes on answering may be so many times slower than the limit before it counts as away."""


class Unreachable(Exception):
    """No answer: the server is away, too slow, or refused the connection. The command may have been carried out."""


class _Connection(asyncio.Protocol):
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[asyncio.Future[object], float]] = deque()
        self._parser = Parser()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._parser.feed(data):
                future, _ = self._waiting.popleft()
                if not future.done():
                    future.set_result(reply)
        except (ValueError, IndexError) as error:
            self._fail(f"it does not speak RESP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection was closed" if error is None else f"{type(error).__name__}: {error}")

    def send(self, data: bytes) -> asyncio.Future[object]:
        future = self._loop.create_future()
        if self.closed or self._transport is None:
            future.set_exception(Unreachable("the connection is closed"))
            return future
        self._waiting.append((future, time.monotonic()))
        self._transport.write(data)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look, None)
        return future

    def _look(self, suspect: asyncio.Future[object] | None) -> None:
        """Is the oldest answer late, and still the same one after a moment?"""
        self._timer = None
        if not self._waiting or self.closed:
            return
        oldest, sent_s = self._waiting[0]
        age_s = time.monotonic() - sent_s
        if age_s < self._timeout_s:
            self._timer = self._loop.call_later(self._timeout_s - age_s, self._look, None)
        elif oldest is suspect or age_s > PATIENCE * self._timeout_s + GRACE_S:
            self._fail(f"no answer within {self._timeout_s:g} s")
        else:
            self._timer = self._loop.call_later(GRACE_S, self._look, oldest)

    def _fail(self, why: str) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(Unreachable(why))

    def close(self) -> None:
        self._fail("this end was closed")


class Pipeline:
    """Connects when it is first asked, and again after a failure. `url` is as redis-py reads it: redis, rediss or unix."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._options: dict[str, Any] = dict(parse_url(url))
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None

    async def execute(self, data: bytes) -> object:
        """The reply to one encoded command. Raises `Unreachable`, or `ErrorReply` where the server answers with an error."""
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._connect()
        reply = await connection.send(data)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    async def aclose(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> _Connection:
        """Everybody who finds it closed waits for one attempt, which goes on when they have given up."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._open(), name="limit store connection")
            self._connecting.add_done_callback(_heard)
        attempt = self._connecting
        done, _ = await asyncio.wait({attempt}, timeout=self._timeout_s)
        if not done:
            raise Unreachable(f"no connection within {self._timeout_s:g} s")
        return attempt.result()

    async def _open(self) -> _Connection:
        options = self._options
        loop = asyncio.get_running_loop()

        def make() -> _Connection:
            return _Connection(self._timeout_s)

        try:
            async with asyncio.timeout(CONNECT_S):
                if "path" in options:
                    _, connection = await loop.create_unix_connection(make, options["path"])
                else:
                    host, port = options.get("host", "localhost"), options.get("port", 6379)
                    _, connection = await loop.create_connection(make, host, port, ssl=_tls(options))
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        try:
            await self._introduce(connection)
        except ErrorReply as refusal:
            connection.close()
            raise Unreachable(f"it refuses the connection: {refusal}") from refusal
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    async def _introduce(self, connection: _Connection) -> None:
        """Credentials, then the database."""
        options = self._options
        lines = []
        if options.get("password"):
            user = [options["username"]] if options.get("username") else []
            lines.append(command("AUTH", *user, options["password"]))
        if options.get("db"):
            lines.append(command("SELECT", options["db"]))
        for line in lines:
            reply = await connection.send(line)
            if isinstance(reply, ErrorReply):
                raise reply


def _heard(attempt: asyncio.Task[_Connection]) -> None:
    """Its failure is known, even when everybody has given up waiting for it."""
    if not attempt.cancelled():
        attempt.exception()


def _tls(options: dict[str, Any]) -> ssl.SSLContext | None:
    if options.get("connection_class") is not SSLConnection:
        return None
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
