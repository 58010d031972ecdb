"""The little of ASGI that the caller endpoints need: reading a bounded body, sending an answer, noticing a departure."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Protocol

from gateway import errors
from gateway.errors import ApiError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

JSON: Final = (b"content-type", b"application/json")
STREAM_LINES: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
JSON_LINE: Final = b"content-type: application/json\r\n"
START: Final = "http.response.start"
BODY: Final = "http.response.body"


class CallerLeft(Exception):
    """The caller closed the connection before the request was whole."""


def check_length(headers: dict[bytes, bytes], limit_bytes: int) -> None:
    """Raises `ApiError` 413 for a body that announces itself as too large."""
    length = headers.get(b"content-length")
    if length is not None and len(length) < 20 and int(length) > limit_bytes:
        raise errors.body_too_large(limit_bytes)


def inflated(headers: dict[bytes, bytes], body: bytes, limit_bytes: int) -> bytes:
    """The body as it was before its content encoding. Raises `ApiError` 413, 415 or 400."""
    if len(body) > limit_bytes:
        raise errors.body_too_large(limit_bytes)
    encoding = headers.get(b"content-encoding")
    return body if encoding is None else _inflated(body, encoding.strip().lower(), limit_bytes)


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """The request's body, as it arrives. Raises `ApiError` 413 as soon as it exceeds the limit, or `CallerLeft`."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise CallerLeft
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > limit_bytes:
            raise errors.body_too_large(limit_bytes)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _inflated(body: bytes, encoding: bytes, limit_bytes: int) -> bytes:
    if encoding in (b"identity", b""):
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise errors.unsupported_encoding(encoding[:40].decode("latin-1"))
    inflater = zlib.decompressobj(wbits=47)  # gzip or zlib, told apart by the header
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
        if len(plain) <= limit_bytes and not inflater.eof:
            raise errors.bad_request("The compressed request body ends before its end.", code="invalid_encoding")
    except zlib.error as error:
        raise errors.bad_request(
            f"The request body is not valid {encoding.decode('latin-1')}.", code="invalid_encoding"
        ) from error
    if len(plain) > limit_bytes:
        raise errors.body_too_large(limit_bytes)
    return plain


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as they stand on the wire, each ended by CRLF. Raises `ValueError` for one that holds a line break."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    joined = b"".join(lines)
    if joined.count(b"\n") != len(lines) or joined.count(b"\r") != len(lines):
        raise ValueError("a header of the answer holds a line break")
    return joined


def headers_of(lines: bytes) -> RawHeaders:
    """What `lines_of` was made of."""
    parted = [line.partition(b": ") for line in lines.split(b"\r\n")[:-1]]
    return [(name, value) for name, _, value in parted]


class Direct(Protocol):
    """What our own server's exchange takes instead of ASGI's messages (`gateway/serve/exchange.py`)."""

    disconnected: bool

    def whole(self) -> bytes | None: ...
    async def answer(self, status: int, lines: bytes, body: bytes) -> None: ...
    def begin(self, status: int, lines: bytes) -> None: ...
    async def pass_on(self, body: bytes, more: bool) -> None: ...


class Messages:
    """The same for any other ASGI server."""

    disconnected = False

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    def whole(self) -> bytes | None:
        """Never at hand: it is received."""
        return None

    async def answer(self, status: int, lines: bytes, body: bytes) -> None:
        await send_bytes(self._send, status, body, headers_of(lines))

    def begin(self, status: int, lines: bytes) -> None:
        self._start = {"type": START, "status": status, "headers": headers_of(lines)}

    async def pass_on(self, body: bytes, more: bool) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        await self._send({"type": BODY, "body": body, "more_body": more})


def answering(send: Send) -> Direct:
    """How answers go out on the connection that `send` belongs to."""
    own: Direct | None = getattr(send, "__self__", None)
    return own if own is not None and hasattr(own, "pass_on") else Messages(send)


async def send_bytes(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    await send({"type": START, "status": status, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
    await send({"type": BODY, "body": body})


def error_headers(error: ApiError) -> RawHeaders:
    return [JSON, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers.items())]


async def send_error(send: Send, error: ApiError, request_id: bytes) -> None:
    await send_bytes(send, error.status, errors.render(error), [*error_headers(error), (b"x-request-id", request_id)])


class Departure:
    """Whether the caller has left. uvicorn's request object is asked directly; any other server by waiting on `receive`."""

    __slots__ = ("_cycle", "_gone", "_task")

    def __init__(self, receive: Receive) -> None:
        cycle = getattr(receive, "__self__", None)
        self._cycle: Any = cycle if hasattr(cycle, "disconnected") else None
        self._gone = False
        self._task = None if self._cycle is not None else asyncio.ensure_future(self._wait(receive))

    @property
    def gone(self) -> bool:
        return bool(self._cycle.disconnected) if self._cycle is not None else self._gone

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
