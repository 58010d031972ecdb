"""The scripted provider of the benchmarks: answers OpenAI chat requests as fast as Python can, and counts what it served.

    python -m bench.upstream --port 9100

It is a bare `asyncio.Protocol` on uvloop: one parse for the content length, one search for `"stream": true`, one write.
The last message of the request says the stream's shape, because every gateway passes messages on: `chunks=200;gap_ms=20`.
Chunks differ from each other, because some gateways end a stream of equal ones.
`GET /book` answers how many requests, streams and chunks were served; every answer's usage is 16 input and 8 output tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import cast

import uvloop

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards judge my vow of quartz".split()
SHAPE = re.compile(rb"chunks=(\d+)(?:;gap_ms=(\d+))?")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
STREAM = re.compile(rb'"stream" *: *true')

PLAIN_BODY = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1790000000,
        "model": "bench-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " ".join(WORDS[:8])},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24},
    }
).encode()
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(PLAIN_BODY),
    PLAIN_BODY,
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(payload: dict[str, object] | str) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    data = b"data: " + text.encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _delta(index: int) -> bytes:
    word = f"{WORDS[index % len(WORDS)]}{index} "
    delta = {"role": "assistant", "content": word} if index == 0 else {"content": word}
    return _event(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1790000000,
            "model": "bench-model",
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
        }
    )


STREAM_TAIL = (
    _event(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1790000000,
            "model": "bench-model",
            "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
        }
    )
    + _event(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion.chunk",
            "created": 1790000000,
            "model": "bench-model",
            "choices": [],
            "usage": {"prompt_tokens": 16, "completion_tokens": 8, "total_tokens": 24},
        }
    )
    + _event("[DONE]")
    + b"0\r\n\r\n"
)
DELTAS = [_delta(index) for index in range(2000)]


class Book:
    """What was served since the start."""

    requests = 0
    streams = 0
    chunks = 0


class Provider(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = b""
        self.transport: asyncio.Transport | None = None
        self.stream: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            match = LENGTH.search(head)
            length = int(match[1]) if match else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        assert self.transport is not None
        if head.startswith(b"GET"):
            text = json.dumps({"requests": Book.requests, "streams": Book.streams, "chunks": Book.chunks}).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
            self.transport.write(head + text)
            return
        Book.requests += 1
        if not STREAM.search(body):
            self.transport.write(PLAIN)
            return
        Book.streams += 1
        match = SHAPE.search(body)
        chunks, gap_ms = (int(match[1]), int(match[2] or 0)) if match else (100, 0)
        if gap_ms == 0:
            Book.chunks += chunks
            self.transport.write(STREAM_HEAD + b"".join(DELTAS[:chunks]) + STREAM_TAIL)
        else:
            self.stream = asyncio.get_running_loop().create_task(self.paced(chunks, gap_ms))

    async def paced(self, chunks: int, gap_ms: int) -> None:
        assert self.transport is not None
        self.transport.write(STREAM_HEAD)
        for index in range(chunks):
            self.transport.write(DELTAS[index])
            Book.chunks += 1
            await asyncio.sleep(gap_ms / 1000)
        self.transport.write(STREAM_TAIL)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9100)
    uvloop.run(serve(parser.parse_args().port))
