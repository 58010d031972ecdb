"""Callers that keep their own book: what each of them was sent, byte by byte, and when it chose to leave."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Wish:
    """What one caller asks for: the provider's script, and after how many events the caller leaves (None: never)."""

    prompt: int
    output: int
    streamed: bool
    chunks: int = 3
    gap_ms: int = 0
    cut: int | None = None
    trouble: str = ""
    """More of the provider's script: `stall=2`, `error=1`, `status=500`."""
    leave_after: int | None = None
    leave_at_once: bool = False
    tags: str = ""

    @property
    def script(self) -> str:
        items = {"prompt": self.prompt, "output": self.output, "chunks": self.chunks, "gap_ms": self.gap_ms}
        if self.cut is not None:
            items["cut"] = self.cut
        if self.gap_ms and not self.streamed:
            items["delay_ms"] = self.gap_ms
        script = ";".join(f"{name}={value}" for name, value in items.items())
        return f"{script};{self.trouble}" if self.trouble else script


@dataclass(slots=True)
class Heard:
    """What the caller knows afterwards. `complete`: it has the whole answer, whose figures are therefore due in the books."""

    wish: Wish
    status: int = 0
    request_id: str = ""
    complete: bool = False
    events: int = 0


@dataclass(slots=True)
class Callers:
    port: int
    key: str
    model: str = "m"
    heard: list[Heard] = field(default_factory=list)

    def body(self, wish: Wish) -> dict[str, Any]:
        body = {"model": self.model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 64}
        body |= {"user": wish.script, "stream": wish.streamed}
        return body | {"stream_options": {"include_usage": True}} if wish.streamed else body

    async def ask(self, wish: Wish, deadline_s: float = 30.0) -> Heard:
        """One request, from its connection to its end, whichever way that comes."""
        heard = Heard(wish)
        self.heard.append(heard)
        try:
            async with asyncio.timeout(deadline_s):
                await self._ask(wish, heard)
        except (OSError, asyncio.IncompleteReadError, ValueError, EOFError):
            pass  # the gateway went away: the caller knows what it knows
        return heard

    async def _ask(self, wish: Wish, heard: Heard) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            payload = json.dumps(self.body(wish)).encode()
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
                f"authorization: Bearer {self.key}\r\ncontent-type: application/json\r\n"
                f"x-metergate-tags: {wish.tags}\r\ncontent-length: {len(payload)}\r\n\r\n"
            )
            writer.write(head.encode() + payload)
            await writer.drain()
            if wish.leave_at_once:
                return
            answer = await reader.readuntil(b"\r\n\r\n")
            heard.status = int(answer.split(b" ", 2)[1])
            for line in answer.split(b"\r\n"):
                if line.lower().startswith(b"x-request-id:"):
                    heard.request_id = line.partition(b":")[2].strip().decode()
            if heard.status != 200:
                return
            if wish.streamed:
                await self._listen(reader, wish, heard)
            else:
                whole = await reader.read(-1)
                heard.complete = json.loads(_unchunked(answer, whole))["usage"]["completion_tokens"] == wish.output
        finally:
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, wish: Wish, heard: Heard) -> None:
        broken = False
        while heard.events != wish.leave_after:
            line = await reader.readline()
            if not line:
                return
            if line.startswith(b'data: {"error"'):
                broken = True
            elif line.startswith(b"data: [DONE]"):
                heard.complete = not broken
                return
            elif line.startswith(b"data:"):
                heard.events += 1


def _unchunked(head: bytes, body: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    whole, rest = b"", body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        whole, rest = whole + rest[:length], rest[length + 2 :]
    return whole


def some_wishes(dice: random.Random, count: int) -> list[Wish]:
    """Everyday traffic: streams and plain answers, quick and paced, with figures that tell them apart."""
    return [
        Wish(
            prompt=dice.randrange(1, 5000),
            output=dice.randrange(1, 60),
            streamed=dice.random() < 0.6,
            chunks=dice.randrange(1, 6),
            gap_ms=dice.choice((0, 0, 5, 30)),
            leave_after=dice.randrange(4) if dice.random() < 0.15 else None,
            cut=dice.randrange(5) if dice.random() < 0.1 else None,
        )
        for _ in range(count)
    ]
