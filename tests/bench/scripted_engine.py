"""A server that answers every request with the same bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.engine_load import Target

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
"""It ends as the last chunk does: `0`, an empty line."""


def stream(prompt_tokens: int, output_tokens: int, texts: list[str]) -> bytes:
    events = [json.dumps({"choices": [{"index": 0, "text": text}]}) for text in texts]
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    events += [json.dumps({"choices": [], "usage": usage}), "[DONE]"]
    chunks = [f"data: {event}\n\n".encode() for event in events]
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@asynccontextmanager
async def server(answer: bytes, piece: int) -> AsyncIterator[Target]:
    """Sends `answer` to every request, in pieces of so many bytes that arrive apart."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        for at in range(0, len(answer), piece):
            writer.write(answer[at : at + piece])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield Target("scripted", listener.sockets[0].getsockname()[1], "m")
