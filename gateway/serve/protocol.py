"""HTTP/1.1 towards callers: an ASGI server protocol for uvicorn's `Server`, thin where every request passes.

uvicorn's own protocol checks each header of each answer by two regular expressions and writes head and body in two system
calls. This one joins head and first body into one write, checks the joined head once, and keeps one small object per request.
All around it (sockets, start, ticks, graceful stop) stays uvicorn's. Measured: docs/decisions/0002-server-protocol.md.

The head of an answer goes out with its first body message, so a streaming route sends both when it has something to say.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.serve.exchange import Exchange, Message, plain_error

REQUEST_HIGH: Final = 262_144
"""Unread bytes of a request's body above which its socket is not read."""

MAX_HEAD_BYTES: Final = 65_536
"""Request line and headers together; above it the answer is 431."""

HEAD_S: Final = 30.0
"""From a request's first byte to the end of its headers."""

BODY_S: Final = 60.0
"""Longest silence inside a request's body."""

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


_BAD_REQUEST: Final = plain_error(400, "This is not a valid HTTP/1.1 request.", "invalid_request_error", "bad_http")
_HEAD_TOO_LARGE: Final = plain_error(
    431, "The request's headers are too large.", "invalid_request_error", "headers_too_large"
)
_TOO_SLOW: Final = plain_error(408, "The request did not arrive in time.", "invalid_request_error", "request_timeout")


class HttpProtocol(asyncio.Protocol):
    """One connection of one caller. Requests are answered in their order; a pipelined one waits for its turn."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.loop = _loop or asyncio.get_running_loop()
        self.server_state = server_state
        self.write_paused = False
        self._app = config.loaded_app
        self._root_path = config.root_path
        self._keep_alive_s = config.timeout_keep_alive
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        self._scheme = "http"
        self._due_s = math.inf
        self._drain: asyncio.Future[None] | None = None
        self._current: Exchange | None = None
        self._parsing: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._dead = False
        self._paused = False
        self._raw_left = 0
        self._in_head = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._expects_continue = False
        self._default_from: list[tuple[bytes, bytes]] | None = None
        self._default_lines = b""

    # ---- what the loop calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.server_state.connections.add(cast(Any, self))
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._rest()

    def data_received(self, data: bytes) -> None:
        if not self._in_head:
            self._due_s = math.inf
        try:
            if self._raw_left:
                self._feed_raw(data)
            else:
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed_raw(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._end_with(_BAD_REQUEST)
        if self._due_s == math.inf:
            if self._in_head:
                self._due_s = self.loop.time() + HEAD_S
            elif self._parsing is not None and self._parsing.more and not self._parsing.complete:
                self._due_s = self.loop.time() + BODY_S

    def eof_received(self) -> bool:
        """A caller that closes its side has mostly left: the app is told so, and gives up what costs money. An answer that comes
        all the same is sent, unless it had begun: that one is cut. Returns whether the connection stays until then."""
        last = self._parsing
        if (
            last is None
            or last.complete
            or last.more
            or self._in_head
            or self._current is None
            or self._current.started
        ):
            return False
        last.close = True
        for exchange in (self._current, *self._waiting):
            exchange.leave()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._dead = True
        self.server_state.connections.discard(cast(Any, self))
        for exchange in (self._current, *self._waiting):
            if exchange is not None and not exchange.complete:
                exchange.lose()
        self._waiting.clear()
        self.resume_writing()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        drain, self._drain = self._drain, None
        if drain is not None and not drain.done():
            drain.set_result(None)

    # ---- what the parser calls ----

    def on_message_begin(self) -> None:
        self._in_head = True
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._head_too_large()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._due_s = math.inf
        if self._dead:
            return
        parser = self._parser
        version = parser.get_http_version()
        path, query = _split_url(self._url)
        scope: Message = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": parser.get_method().decode("ascii"),
            "root_path": self._root_path,
            "path": unquote(path.decode("ascii")) if b"%" in path else path.decode("ascii"),
            "raw_path": path,
            "query_string": query,
            "headers": self._headers,
            "state": {},
        }
        close = not parser.should_keep_alive() or parser.should_upgrade()
        if version != "1.1":  # HTTP/1.0 knows neither; what follows a body in chunks may be no request (RFC 9112, 6.1)
            self._expects_continue = False
            close = close or any(name == b"transfer-encoding" for name, _ in self._headers)
        exchange = Exchange(self, scope, close=close, expects_continue=self._expects_continue)
        self._parsing = exchange
        if self._current is None or self._current.complete:
            self._start(exchange)
        else:
            self._waiting.append(exchange)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        exchange = self._parsing
        if exchange is None or exchange.complete or self._dead:
            return
        exchange.feed(body)
        if exchange.size > REQUEST_HIGH:
            self.pause_reading()

    def on_message_complete(self) -> None:
        exchange = self._parsing
        if exchange is None or exchange.complete:
            return
        if self._parser.should_upgrade():
            self._raw_left = _content_length(self._headers)
            if self._raw_left:
                return
        exchange.end()

    # ---- what an exchange calls ----

    @property
    def default_headers(self) -> Iterable[tuple[bytes, bytes]]:
        return self.server_state.default_headers

    @property
    def default_lines(self) -> bytes:
        """The default headers as bytes, made anew where the server has replaced them (each second, for the date)."""
        headers = self.server_state.default_headers
        if headers is not self._default_from:
            self._default_from = headers
            self._default_lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._default_lines

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def write_all(self, pieces: Iterable[bytes]) -> None:
        self._transport.writelines(pieces)

    async def drained(self) -> None:
        """Returns when the caller has taken enough, or has left."""
        if self._drain is None:
            self._drain = self.loop.create_future()
        await asyncio.shield(self._drain)

    def pause_reading(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def answered(self, exchange: Exchange) -> None:
        """The answer is complete: the next request's turn, or rest, or the end."""
        self.server_state.total_requests += 1
        if exchange.close or self._dead:
            self._transport.close()
            return
        self.resume_reading()
        if self._waiting:
            self._start(self._waiting.popleft())
        else:
            self._rest()

    def refuse(self, answer: bytes) -> None:
        """Sends a ready answer instead of the app's and closes."""
        if not self._dead:
            self._transport.write(answer)
            self._transport.close()
        self._dead = True

    def drop(self) -> None:
        self._dead = True
        self._transport.close()

    # ---- what uvicorn's server calls ----

    def shutdown(self) -> None:
        """No further request on this connection; a running one is finished."""
        if self._current is None or self._current.complete:
            self._transport.close()
        else:
            self._current.close = True

    def sweep(self, now_s: float) -> None:
        """Ends a connection that rested too long, or whose request stopped arriving. Called twice a second for all of them: no
        request sets a timer."""
        if now_s < self._due_s or self._dead:
            return
        self._due_s = math.inf
        if self._in_head or (self._current is not None and not self._current.complete):
            self._late()
        else:
            self._transport.close()

    # ---- the rest ----

    def _feed_raw(self, data: bytes) -> None:
        """An offer to upgrade is declined by answering it; the parser stops at its headers, so its body is read here."""
        exchange = self._parsing
        if exchange is None or exchange.complete or not self._raw_left:
            return
        body = data[: self._raw_left]
        self._raw_left -= len(body)
        if body:
            self.on_body(body)
        if not self._raw_left:
            exchange.end()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        task = self.loop.create_task(exchange.run(self._app))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def _rest(self) -> None:
        if not self._in_head:  # else the next request is arriving already, under its own deadline
            self._due_s = self.loop.time() + self._keep_alive_s

    def _head_too_large(self) -> None:
        if not self._dead:
            self._end_with(_HEAD_TOO_LARGE)

    def _late(self) -> None:
        """A request that stopped arriving. One whose body we do not read for now is not late."""
        if self._paused:
            self._due_s = self.loop.time() + BODY_S
        else:
            self._end_with(_TOO_SLOW)

    def _end_with(self, answer: bytes) -> None:
        """Something on this connection cannot be read. Nothing is written into the middle of another answer."""
        if self._dead:
            return
        current = self._current
        if current is None or current.complete:
            self.refuse(answer)
        elif current.started or current is not self._parsing:
            self.drop()
        else:
            self.refuse(answer)
            current.lose()


def _split_url(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target in origin form, or in absolute form."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        return parsed.path or b"/", parsed.query or b""
    path, _, query = url.partition(b"?")
    return path, query.partition(b"#")[0]


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    return next((int(value) for name, value in headers if name == b"content-length"), 0)


def _address(info: object) -> tuple[str, int] | None:
    return (str(info[0]), int(info[1])) if isinstance(info, (tuple, list)) and len(info) >= 2 else None
