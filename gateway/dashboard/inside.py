"""The dashboard's way to everything: the admin API, asked inside the process as the person who is signed in.

So a page can show and change exactly what that person's role may, every change is checked, logged and rolled back by the same
code, and no figure is computed in a second place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

from gateway.admin.guard import PRINCIPAL
from gateway.admin.roles import ADMIN, Principal

Json = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
MAX_PAGES = 20


class Refused(Exception):
    """The admin API said no: its status and its words, and the field they are about."""

    def __init__(self, status: int, message: str, field: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Inside:
    """`client` and `forwarded` are the browser's, so that the audit log has its address."""

    app: App
    principal: Principal
    client: tuple[str, int] | None
    forwarded: tuple[bytes, ...] = ()

    async def get(self, path: str, query: Mapping[str, object] | None = None) -> Json:
        return _object(await self.raw("GET", path, query))

    async def post(self, path: str, body: Mapping[str, object]) -> Json:
        return _object(await self.raw("POST", path, body=body))

    async def patch(self, path: str, body: Mapping[str, object]) -> Json:
        return _object(await self.raw("PATCH", path, body=body))

    async def every(self, path: str, query: Mapping[str, object] | None = None) -> tuple[list[Json], bool]:
        """All rows of a list, and whether that was really all: it stops after `MAX_PAGES` pages of 1000."""
        rows: list[Json] = []
        count = 0
        async for page in self.pages(path, query):
            if count == MAX_PAGES:
                return rows, False
            rows += page
            count += 1
        return rows, True

    async def pages(self, path: str, query: Mapping[str, object] | None = None) -> AsyncIterator[list[Json]]:
        """A list page by page, 1000 rows each, to its end."""
        asked: dict[str, object] = {"limit": 1000, **(query or {})}
        while True:
            page = await self.get(path, asked)
            yield page["data"]
            if page["next_cursor"] is None:
                return
            asked["cursor"] = page["next_cursor"]

    async def raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> bytes:
        """The answer's body. Raises `Refused` for any status from 400 on."""
        answer = _Answer(b"" if body is None else msgspec.json.encode(body))
        await self.app(self._scope(method, path, query, answer.content), answer.receive, answer.send)
        if answer.status >= 400:
            raise _refused(answer.status, answer.body)
        return answer.body

    async def pieces(self, path: str, query: Mapping[str, object] | None = None) -> AsyncGenerator[bytes, None]:
        """The answer's body as it is made, never more than a piece ahead; the first piece is empty and comes with its status.

        Raises `Refused` instead of it.
        """
        messages: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(1)
        scope = self._scope("GET", path, query, b"")
        asking = asyncio.ensure_future(self.app(scope, _Answer(b"").receive, messages.put))
        try:
            status = (await _next(messages, asking))["status"]
            if status < 400:
                yield b""
            body, more = b"", True
            while more:
                message = await _next(messages, asking)
                more = message.get("more_body", False)
                if status < 400:
                    yield message.get("body", b"")
                else:
                    body += message.get("body", b"")
            if status >= 400:
                raise _refused(status, body)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    def _scope(self, method: str, path: str, query: Mapping[str, object] | None, content: bytes) -> dict[str, Any]:
        given = {name: _text(value) for name, value in (query or {}).items() if value is not None and value != ""}
        headers = [(b"host", b"inside"), (b"content-type", b"application/json")]
        headers += [(b"content-length", str(len(content)).encode())]
        headers += [(b"x-forwarded-for", value) for value in self.forwarded]
        whole = f"{ADMIN}{path}"
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": whole,
            "raw_path": whole.encode(),
            "root_path": "",
            "query_string": urlencode(given).encode(),
            "headers": headers,
            "client": self.client,
            "server": ("inside", 80),
            PRINCIPAL: self.principal,
        }


async def _next(messages: asyncio.Queue[MutableMapping[str, Any]], asking: asyncio.Future[None]) -> Json:
    """The next message, or the failure that kept it from coming."""
    waiting = asyncio.ensure_future(messages.get())
    both: set[asyncio.Future[Any]] = {waiting, asking}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if messages.empty() and not waiting.done():
        waiting.cancel()
        asking.result()
        raise ConnectionError("the admin API ended without an answer")
    return dict(await waiting)


class _Answer:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.status = 500
        self.body = b""
        self._asked = False

    async def receive(self) -> Json:
        """The request, once; after it nobody ever leaves."""
        if self._asked:
            await asyncio.get_running_loop().create_future()
        self._asked = True
        return {"type": "http.request", "body": self.content, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _object(body: bytes) -> Json:
    return msgspec.json.decode(body, type=Json)


def _refused(status: int, body: bytes) -> Refused:
    try:
        error = msgspec.json.decode(body)["error"]
        return Refused(status, str(error["message"]), error["param"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return Refused(status, f"The admin API answered {status}.", None)
