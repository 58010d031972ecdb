"""A receiver on a real socket: it keeps what it gets, and answers with the statuses it was told, then with 200."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Receiver:
    port: int = 0
    statuses: list[int] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?who=us"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {":request": lines[0]}
                for line in filter(None, lines[1:]):
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                body = await reader.readexactly(int(headers["content-length"]))
                self.got.append((headers, body))
                status = self.statuses.pop(0) if self.statuses else 200
                elsewhere = "location: /elsewhere\r\n" if status in (301, 302, 307, 308) else ""
                writer.write(f"HTTP/1.1 {status} X\r\n{elsewhere}content-length: 2\r\n\r\nok".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*statuses: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(statuses=list(statuses))
    server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
