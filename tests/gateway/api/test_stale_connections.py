"""Connections to a provider that died while they rested, as behind a router that has forgotten them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.settings import load_settings
from tests.gateway.api.conftest import Provisioned, environment, running

AT_ONCE = 16
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1790000000,
        "model": "up-m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
).encode()
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)


class Forgetful:
    """Answers the first request of each connection, once `AT_ONCE` have come, and breaks those off at their second."""

    def __init__(self) -> None:
        self.connections = self.requests = 0
        self.all_there = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        old, used = self.connections <= AT_ONCE, False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                if old and used:
                    writer.transport.abort()
                    return
                used = True
                self.requests += 1
                if self.requests == AT_ONCE:
                    self.all_there.set()
                await self.all_there.wait()
                writer.write(PLAIN)
        writer.close()


@contextlib.asynccontextmanager
async def forgetful() -> AsyncIterator[tuple[Forgetful, int]]:
    provider = Forgetful()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    try:
        yield provider, server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_connections_that_died_at_rest_cost_nobody_an_answer(tmp_path: Path, provisioned: Provisioned) -> None:
    async with forgetful() as (provider, port):
        config = tmp_path / "gateway.yaml"
        config.write_text(
            f'providers: {{up: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1"}}}}\n'
            "models: [{name: m, context_window: 8192, max_output_tokens: 4096, routes: [{provider: up, model: up-m}]}]\n"
        )
        shutil.copyfile(provisioned.database, tmp_path / "metergate.db")
        async with running(load_settings(config, environment(tmp_path, tmp_path / "metergate.db"))) as gateway:
            gateway.use(provisioned)
            first = await asyncio.gather(*[gateway.chat() for _ in range(AT_ONCE)])
            assert [answer.status_code for answer in first] == [200] * AT_ONCE and provider.connections == AT_ONCE
            again = await asyncio.gather(*[gateway.chat() for _ in range(AT_ONCE)])
            assert [answer.status_code for answer in again] == [200] * AT_ONCE
            attempts = [int(answer.headers["x-metergate-attempts"]) for answer in again]
            assert max(attempts) == 2
            rows = [await gateway.row(answer) for answer in again]
            assert {row["settled"]["amount"] for row in rows} == {(await gateway.row(first[0]))["settled"]["amount"]}
