"""The load driver: keep-alive callers as bare `asyncio.Protocol`s on uvloop, every answer checked.

It measures itself too: a run straight at the scripted provider (no gateway between) must be several times faster than any
gateway, or the driver, not the gateway, is what was measured. `run_load` is bounded by a count of requests and by a deadline.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import cast

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
DONE = b"data: [DONE]"


@dataclass(slots=True)
class Target:
    """Where the load goes. `model` and `headers` are what this gateway's callers send."""

    name: str
    port: int
    model: str
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """One run. Times in seconds; `first_s` holds the time to each stream's first event, `bad` counts wrong answers."""

    requests: int = 0
    chunks: int = 0
    bad: int = 0
    elapsed_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    first_bad: str | None = None

    def percentile_ms(self, values: list[float], q: float) -> float:
        ordered = sorted(values)
        return 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def request_bytes(target: Target, *, stream: bool, shape: str) -> bytes:
    """One HTTP/1.1 request, ready to be written again and again."""
    body: dict[str, object] = {
        "model": target.model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"Tell me something about foxes, please. {shape}"},
        ],
        "max_tokens": 64,
        "temperature": 0.5,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    payload = json.dumps(body).encode()
    lines = [f"POST {target.path} HTTP/1.1", f"host: 127.0.0.1:{target.port}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in target.headers.items()]
    lines += [f"content-length: {len(payload)}", "", ""]
    return "\r\n".join(lines).encode() + payload


class Caller(asyncio.Protocol):
    """One keep-alive connection that sends its next request when the last answer is complete and right."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.buffer = bytearray()
        self.sent_at = 0.0
        self.first_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send()

    def send(self) -> None:
        assert self.transport is not None
        if not self.driver.take():
            self.transport.close()
            return
        self.buffer.clear()
        self.first_at = 0.0
        self.sent_at = time.perf_counter()
        self.transport.write(self.driver.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.driver.stream:
            if not self.first_at and b"data:" in self.buffer:
                self.first_at = time.perf_counter()
            if self.buffer.endswith(b"0\r\n\r\n"):
                self.finish(self.stream_is_right())
            return
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        match = LENGTH.search(self.buffer, 0, end)
        complete = len(self.buffer) >= end + 4 + int(match[1]) if match else self.buffer.endswith(b"0\r\n\r\n")
        if complete:
            self.finish(self.buffer.startswith(b"HTTP/1.1 200") and b'"completion_tokens"' in self.buffer)

    def stream_is_right(self) -> bool:
        text = bytes(self.buffer)
        complete = text.startswith(b"HTTP/1.1 200") and DONE in text and b'"completion_tokens"' in text
        self.driver.outcome.chunks += (seen := text.count(b"chat.completion.chunk"))
        return complete and seen >= self.driver.expected_chunks

    def finish(self, right: bool) -> None:
        now = time.perf_counter()
        outcome = self.driver.outcome
        outcome.requests += 1
        outcome.latencies_s.append(now - self.sent_at)
        if self.driver.stream:
            outcome.first_s.append(self.first_at - self.sent_at)
        if not right:
            outcome.bad += 1
            outcome.first_bad = outcome.first_bad or bytes(self.buffer[:600]).decode(errors="replace")
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.driver.closed(self)


class Driver:
    def __init__(self, target: Target, *, callers: int, requests: int, stream: bool, chunks: int, gap_ms: int) -> None:
        self.target = target
        self.callers = callers
        self.left = requests
        self.stream = stream
        self.expected_chunks = chunks
        self.request = request_bytes(target, stream=stream, shape=f"chunks={chunks};gap_ms={gap_ms}")
        self.outcome = Outcome()
        self.open = 0
        self.done = asyncio.Event()

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def closed(self, caller: Caller) -> None:
        self.open -= 1
        if self.left > 0:
            self.outcome.bad += 1
            self.outcome.first_bad = self.outcome.first_bad or "the server closed the connection"
        if self.open == 0:
            self.done.set()

    async def run(self, deadline_s: float) -> Outcome:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        self.open = self.callers
        for _ in range(self.callers):
            await loop.create_connection(lambda: Caller(self), "127.0.0.1", self.target.port)
        async with asyncio.timeout(deadline_s):
            await self.done.wait()
        self.outcome.elapsed_s = time.perf_counter() - started
        return self.outcome


async def run_load(
    target: Target,
    *,
    callers: int,
    requests: int,
    stream: bool = False,
    chunks: int = 100,
    gap_ms: int = 0,
    deadline_s: float = 120,
) -> Outcome:
    """`requests` requests over `callers` connections. Raises TimeoutError past the deadline."""
    driver = Driver(target, callers=callers, requests=requests, stream=stream, chunks=chunks, gap_ms=gap_ms)
    return await driver.run(deadline_s)
