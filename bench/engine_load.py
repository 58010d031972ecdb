"""The streaming client of bench.engines: bare `asyncio.Protocol`s, one request each, all sent at once, every answer checked.

A prompt is words that are each one token of SmolLM2's vocabulary, so that every server, whose own tokeniser reads the text, must
count the same prompt. The client looks for the first text and for the end of the stream and parses nothing before that.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import cast

WORDS = (
    "the quick brown fox over a lazy dog while seven my of river stone light house winter summer music paper table window "
    "door ocean forest city people children water fire bread letter story night road bridge field horse"
).split()
FIRST_TEXT = re.compile(rb'"text": ?"[^"]')
END = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Point:
    """One load: `callers` requests at once with prompts of `prompt_tokens`, of which the first `shared_tokens` are common."""

    name: str
    callers: int
    prompt_tokens: int
    shared_tokens: int = 0
    output_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes, and what this server's requests carry beside OpenAI's own fields."""

    name: str
    port: int
    model: str
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Wave:
    """What the callers of one point saw: seconds from the first send to the last end, and to each caller's first text."""

    elapsed_s: float
    first_s: list[float]
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.elapsed_s

    @property
    def first_p50_ms(self) -> float:
        return 1000 * median(self.first_s)


class WrongAnswer(RuntimeError):
    """An answer that is not a complete stream of as many tokens as were asked for."""


def prompts(point: Point, seed: str) -> list[str]:
    """One for each caller; another `seed` gives others, so that no prefix cache knows them."""
    shared = random.Random(f"{seed} shared").choices(WORDS, k=point.shared_tokens)
    own = point.prompt_tokens - point.shared_tokens
    return [
        " ".join(shared + random.Random(f"{seed} {caller}").choices(WORDS, k=own)) for caller in range(point.callers)
    ]


def request_bytes(target: Target, prompt: str, output_tokens: int) -> bytes:
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **target.extra,
    }
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{target.port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload


def usage_of(answer: bytes) -> tuple[int, int]:
    """Prompt and output tokens that the stream's last usage tells. Raises `WrongAnswer`."""
    if not answer.startswith(b"HTTP/1.1 200"):
        raise WrongAnswer(answer[:600].decode(errors="replace"))
    for line in reversed(answer.split(b"\n")):
        if line.startswith(b"data: {") and b'"prompt_tokens"' in line:
            usage = json.loads(line[6:]).get("usage")
            if usage:
                return int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    raise WrongAnswer(f"no usage in {answer[-600:].decode(errors='replace')}")


class Caller(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.request = request
        self.buffer = bytearray()
        self.sent_s = self.first_s = self.end_s = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self) -> None:
        assert self.transport is not None
        self.sent_s = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.first_s and FIRST_TEXT.search(self.buffer):
            self.first_s = time.perf_counter()
        if self.buffer.endswith(END):
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.end_s = time.perf_counter()
            self.done.set_result(None)


async def wave(target: Target, point: Point, seed: str, deadline_s: float = 120) -> Wave:
    """All callers of `point` at once. Raises `WrongAnswer`, and TimeoutError past the deadline."""
    loop = asyncio.get_running_loop()
    callers: list[Caller] = []
    for prompt in prompts(point, seed):
        request = request_bytes(target, prompt, point.output_tokens)
        _, caller = await loop.create_connection(lambda request=request: Caller(request), "127.0.0.1", target.port)  # type: ignore[misc]
        callers.append(caller)
    try:
        async with asyncio.timeout(deadline_s):
            for caller in callers:
                caller.send()
            await asyncio.gather(*(caller.done for caller in callers))
    finally:
        for caller in callers:
            if caller.transport is not None:
                caller.transport.abort()
    return _checked(callers, point)


def _checked(callers: Sequence[Caller], point: Point) -> Wave:
    for caller in callers:
        counts = usage_of(bytes(caller.buffer))
        if counts != (point.prompt_tokens, point.output_tokens) or not caller.first_s:
            raise WrongAnswer(f"{counts} tokens of prompt and answer, not {point.prompt_tokens, point.output_tokens}")
    return Wave(
        elapsed_s=max(caller.end_s for caller in callers) - min(caller.sent_s for caller in callers),
        first_s=[caller.first_s - caller.sent_s for caller in callers],
        output_tokens=point.output_tokens * len(callers),
    )
