"""A feed's server on a real socket: one scripted answer after the other, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from billing.times import format_time, now_us
from gateway.settings import RateFeedSettings


def today() -> str:
    return format_time(now_us())


def good(rate: str = "1.0873") -> bytes:
    return b'{"base":"EUR","published_at":"%b","rates":{"USD":%b}}' % (today().encode(), rate.encode())


def http(status: str, body: bytes, *headers: str) -> bytes:
    head = "".join(f"{each}\r\n" for each in headers)
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{head}connection: close\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncIterator[RateFeedSettings]:
    """A feed whose server gives one answer after the other (the last for ever), byte for byte; None: it says nothing."""
    left = list(answers)
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        answer = left.pop(0) if len(left) > 1 else left[0]
        if answer is None:
            return
        try:
            writer.write(answer)
            await writer.drain()
            writer.close()
        except ConnectionError:
            pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield RateFeedSettings(
            name="f",
            format="json",
            url=f"http://localhost:{port}/rates",
            networks=["127.0.0.0/8", "::1/128"],
            timeout_s=5,
        )
    finally:
        server.close()
        for writer in held:
            writer.close()
