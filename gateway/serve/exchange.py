"""One request and its answer on a connection: ASGI's `receive` and `send`, and the framing of what goes out."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Iterable, MutableMapping
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]

JOIN_BYTES: Final = 65_536
"""A head and a body up to this size are copied into one piece; larger ones go out as a vector."""

_CLOSE: Final = b"connection: close\r\n"
_KEEP_ALIVE: Final = b"connection: keep-alive\r\n"
"""What an HTTP/1.0 caller that asked for it must hear; HTTP/1.1 means it by saying nothing."""

STATUS: Final = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n".encode("ascii") for status in http.HTTPStatus
}


class Connection(Protocol):
    """What an exchange needs of the connection that it happens on."""

    loop: asyncio.AbstractEventLoop
    write_paused: bool

    @property
    def default_headers(self) -> Iterable[tuple[bytes, bytes]]: ...
    @property
    def default_lines(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def write_all(self, pieces: Iterable[bytes]) -> None: ...
    async def drained(self) -> None: ...
    def resume_reading(self) -> None: ...
    def answered(self, exchange: Exchange) -> None: ...
    def refuse(self, answer: bytes) -> None: ...
    def drop(self) -> None: ...


def plain_error(status: int, text: str, kind: str, code: str) -> bytes:
    body = f'{{"error":{{"message":"{text}","type":"{kind}","param":null,"code":"{code}"}}}}'.encode("ascii")
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return STATUS[status] + head + body


_INTERNAL: Final = plain_error(500, "The gateway failed to answer.", "server_error", "internal_error")


class Exchange:
    """One request and its answer: the `receive` and `send` of ASGI."""

    __slots__ = (
        "_body", "_chunked", "_head", "_left", "_lost", "_news", "_old", "_protocol", "_silent", "_unframed", "_waiter",
        "close", "complete", "disconnected", "expects_continue", "more", "scope", "size", "started",
    )  # fmt: skip

    def __init__(self, protocol: Connection, scope: Message, *, close: bool, expects_continue: bool) -> None:
        self._protocol = protocol
        self.scope = scope
        self.close = close
        self.expects_continue = expects_continue
        self.more = True
        self.size = 0
        self.started = False
        self.complete = False
        self.disconnected = False
        self._lost = False
        self._news = False
        self._body: list[bytes] = []
        self._head: bytes | None = None
        self._old = scope["http_version"] != "1.1"
        self._silent = scope["method"] == "HEAD"
        self._chunked = False
        self._unframed = False
        self._left = 0
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._protocol.drop()
            raise
        except Exception:
            logger.exception("an answer failed inside the gateway")
        if not (self.complete or self._lost):
            if self.disconnected or (self._head is None and self.started):
                self._protocol.drop()
            else:
                self._protocol.refuse(_INTERNAL)

    # ---- what arrives ----

    def feed(self, data: bytes) -> None:
        self._body.append(data)
        self.size += len(data)
        self.wake()

    def end(self) -> None:
        self.more = False
        self.wake()

    def leave(self) -> None:
        """The caller counts as gone, though an answer could still reach it."""
        self.disconnected = True
        self.wake()

    def lose(self) -> None:
        self._lost = True
        self.leave()

    def wake(self) -> None:
        self._news = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def receive(self) -> Message:
        """The next part of the body; `http.disconnect` once the caller has left or the answer is complete."""
        if self.expects_continue and not self.started:
            self.expects_continue = False
            self._protocol.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._news:
            self._waiter = self._protocol.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._taken(), "more_body": self.more}

    def whole(self) -> bytes | None:
        """The request's body, where all of it has come and none was taken; `receive` gives it otherwise."""
        if self.more or not self._news or self.disconnected or self.complete:
            return None
        self.expects_continue = False
        return self._taken()

    def _taken(self) -> bytes:
        self._news = False
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self.size = 0
        self._protocol.resume_reading()
        return body

    # ---- what goes out ----

    async def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """The whole answer at once. `lines` are its headers, each ended by CRLF, without the framing, which is ours.

        `answer`, `begin` and `pass_on` do what `send` does, for routes that make their head and answer for its line breaks.
        """
        self._begin(status, lines, b"content-length: %d\r\n\r\n" % len(body))
        self._left = len(body)
        if self._protocol.write_paused and not self._lost:
            await self._protocol.drained()
        self._put(body, False)

    def begin(self, status: int, lines: bytes) -> None:
        """An answer whose length is not known: its head goes out with its first piece."""
        self._begin(status, lines, self._open_framing())

    def _begin(self, status: int, lines: bytes, framing: bytes) -> None:
        if self.started:
            raise RuntimeError("the answer was already started")
        self.started = True
        self._head = b"%b%b%b%b%b" % (STATUS[status], self._protocol.default_lines, lines, self._persistence(), framing)

    def _open_framing(self) -> bytes:
        """How a body without a known length ends: in chunks, or for HTTP/1.0, which knows none, with its connection."""
        if self._old:
            self.close = self._unframed = True
            return b"\r\n"
        self._chunked = True
        return b"transfer-encoding: chunked\r\n\r\n"

    def _persistence(self) -> bytes:
        if self.close:
            return _CLOSE
        return _KEEP_ALIVE if self._old else b""

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            if self.started:
                raise RuntimeError("the answer was already started")
            self._head = self._make_head(message["status"], message.get("headers", ()))
            self.started = True
            return
        if kind != "http.response.body" or not self.started or self.complete:
            raise RuntimeError(f"{kind} does not belong here")
        await self.pass_on(message.get("body", b""), message.get("more_body", False))

    async def pass_on(self, body: bytes, more: bool) -> None:
        """A piece of the answer, the last one unless `more` come."""
        if self._protocol.write_paused and not self._lost:
            await self._protocol.drained()
        self._put(body, more)

    def _put(self, body: bytes, more: bool) -> None:
        if self._lost:
            return
        protocol = self._protocol
        data = self._frame(body, more)
        head, self._head = self._head, None
        if head is None:
            protocol.write(data)
        elif len(data) <= JOIN_BYTES:
            protocol.write(head + data)
        else:
            protocol.write_all((head, data))
        if not more:
            self.complete = True
            self.wake()
            protocol.answered(self)

    def _make_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        parts = [STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status]
        length: int | None = None
        lines = 1
        for name, value in (*self._protocol.default_headers, *headers):
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                continue  # framing is this class's own affair
            elif name == b"connection":
                self.close = self.close or b"close" in value.lower()
                continue
            lines += 1
            parts += (name, b": ", value, b"\r\n")
        framing = b"\r\n"
        if status in (204, 304):
            self._silent = True
        elif length is not None:
            self._left = length
        elif not self._silent:
            framing = self._open_framing()
        head = b"".join(parts)
        if head.count(b"\n") != lines or head.count(b"\r") != lines:
            raise RuntimeError("a header of the answer holds a line break")
        return head + self._persistence() + framing

    def _frame(self, body: bytes, more: bool) -> bytes:
        if self._silent:
            return b""
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        if self._unframed:
            return body
        self._left -= len(body)
        if self._left < 0 or (self._left and not more):
            raise RuntimeError("the answer's body does not have its content-length")
        return body
