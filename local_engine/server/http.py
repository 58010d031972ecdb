"""As much of HTTP as the surface needs, straight on ASGI: bodies with a limit, JSON, errors in OpenAI's shape, SSE."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from ..errors import (
    ConfigError,
    Draining,
    EngineDead,
    EngineError,
    Overloaded,
    RequestError,
    Unresponsive,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
_encoder = msgspec.json.Encoder()


class HttpError(EngineError):
    """An answer with a status of its own."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or []


class CallerGone(Exception):
    """The caller left before its request was whole: there is nobody to answer."""


class Request:
    """One HTTP request. `id` is the caller's x-request-id, or a new one."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self.started = False
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = given if is_request_id(given) else uuid.uuid4().hex

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises `HttpError` 413 as soon as it is longer than `limit` bytes, `CallerGone` if it never ends."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise HttpError(413, f"The request body is larger than {limit} bytes.", code="request_too_large")
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def disconnected(self) -> None:
        """Returns when the caller has gone. To be awaited only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, content_type: bytes, extra: Headers | None = None) -> None:
        self.started = True
        headers = [(b"content-type", content_type), (b"x-request-id", self.id.encode("latin-1")), *(extra or [])]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(self, status: int, data: bytes, content_type: bytes = JSON, extra: Headers | None = None) -> None:
        await self.start(status, content_type, [(b"content-length", str(len(data)).encode()), *(extra or [])])
        await self.send(data, more=False)

    async def respond_json(self, value: object, status: int = 200, extra: Headers | None = None) -> None:
        await self.respond(status, to_json(value), JSON, extra)


def is_request_id(text: str) -> bool:
    """Whether a caller's own id is adopted."""
    return _REQUEST_ID.fullmatch(text) is not None


def to_json(value: object) -> bytes:
    return _encoder.encode(value)


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def http_error(error: Exception) -> HttpError:
    """The one place where the package's errors become HTTP."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, RequestError):
        return HttpError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, Overloaded):
        retry = [(b"retry-after", str(error.retry_after_s).encode())]
        return HttpError(503, str(error), kind="server_error", code="overloaded", headers=retry)
    if isinstance(error, Draining):
        retry = [(b"retry-after", b"1")]
        return HttpError(503, str(error), kind="server_error", code="shutting_down", headers=retry)
    if isinstance(error, Unresponsive):
        retry = [(b"retry-after", b"2")]
        return HttpError(503, str(error), kind="server_error", code="engine_unresponsive", headers=retry)
    if isinstance(error, EngineDead):
        return HttpError(503, str(error), kind="server_error", code="engine_dead")
    if isinstance(error, ConfigError):
        return HttpError(500, str(error), kind="server_error")
    return HttpError(500, "The engine's server failed to handle this request; its log says why.", kind="server_error")


def error_body(error: HttpError) -> dict[str, object]:
    return {"error": {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}}
