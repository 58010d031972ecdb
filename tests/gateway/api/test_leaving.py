"""Rule 20: a stream that its caller left is billed by the provider's own count if the rest is read, else by what was sent."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.api.app import create_app
from gateway.serve.preflight import bind
from gateway.serve.server import make_server
from gateway.settings import Settings
from tests.gateway.api.conftest import CHAT, MESSAGES, Gateway, Upstream, running, until


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Every byte is a token."""
    path = tmp_path / "bytes.tiktoken"
    path.write_bytes(b"".join(b"%b %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256)))
    return path


@pytest.fixture
async def draining(settings: Settings, provisioned: object) -> AsyncIterator[Gateway]:
    up = replace(settings.providers["up"], drain_s=5.0)
    async with running(replace(settings, providers={**settings.providers, "up": up})) as gateway:
        gateway.use(provisioned)  # type: ignore[arg-type]
        yield gateway


@pytest.fixture
async def counting(settings: Settings, provisioned: object, tokenizer: Path) -> AsyncIterator[Gateway]:
    models = [replace(model, tokenizer=str(tokenizer)) for model in settings.models]
    async with running(replace(settings, models=models)) as gateway:
        gateway.use(provisioned)  # type: ignore[arg-type]
        yield gateway


async def leave(gateway: Gateway, script: str, after: int, model: str = "m") -> None:
    """Asks for a stream and hangs up behind so many events."""
    body = {"model": model, "messages": MESSAGES, "user": script, "stream": True}
    async with gateway.client.stream("POST", CHAT, json=body) as answer:
        events = 0
        async for line in answer.aiter_lines():
            events += line.startswith("data:")
            if events == after:
                break


async def test_rule_20_a_drained_stream_is_billed_by_the_providers_own_count(draining: Gateway, up: Upstream) -> None:
    await leave(draining, "prompt=90;output=41;chunks=20;gap_ms=20", 2)
    row = await draining.only_row()
    assert (row["status"], row["tokens"]["input"], row["tokens"]["output"]) == ("cancelled", 90, 41)
    assert row["estimated"] is False
    assert [entry["ended"] for entry in await up.book()] == ["finished"]


async def test_rule_20_a_drain_is_bounded(settings: Settings, provisioned: object, up: Upstream) -> None:
    short = replace(settings.providers["up"], drain_s=0.3)
    async with running(replace(settings, providers={**settings.providers, "up": short})) as gateway:
        gateway.use(provisioned)  # type: ignore[arg-type]
        await leave(gateway, "chunks=3;gap_ms=20;stall=2", 1)
        row = await gateway.only_row()
        assert (row["status"], row["estimated"]) == ("cancelled", True)

        async def left() -> bool:
            return [entry["ended"] for entry in await up.book()] == ["left"]

        async with asyncio.timeout(5):
            while not await left():
                await asyncio.sleep(0.02)


async def test_rule_20_what_was_sent_is_counted_with_the_models_own_tokenizer(counting: Gateway, up: Upstream) -> None:
    """The scripted chunk is the word `abcdefghij`: ten tokens of this tokenizer each, whatever the estimator would say."""
    await leave(counting, "text=abcdefghij;chunks=50;gap_ms=30", 3)
    row = await counting.only_row()
    assert (row["status"], row["estimated"]) == ("cancelled", True)
    output = row["tokens"]["output"]
    assert output % 10 == 0 and 30 <= output < 500


async def test_rule_20_what_an_engine_sent_is_counted_by_the_engine_where_it_cannot_say_what_a_request_used(
    gateway: Gateway, motor: Upstream
) -> None:
    """As vLLM, which has `/tokenize` and no way to cancel. The scripted one makes 17 tokens of every text."""
    await leave(gateway, "cancel=unknown;text=abcdefghij;chunks=50;gap_ms=30", 3, model="engine")
    row = await gateway.only_row()
    assert (row["status"], row["estimated"], row["tokens"]["output"]) == ("cancelled", True, 17)
    asked = [entry["body"] for entry in await motor.book() if entry["path"] == "/tokenize"]
    assert len(asked) == 1 and asked[0]["prompt"].startswith("abcdefghij" * 3)


@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_rule_20_a_call_whose_caller_closes_its_side_is_cancelled_and_unanswered(
    gateway: Gateway, spare: Upstream, stream: bytes
) -> None:
    """On our own server, which could still answer: nobody pays on for what mostly nobody reads."""
    script = b"delay_ms=8000;first_delay_ms=8000"
    body = b'{"model":"far","messages":[{"role":"user","content":"a"}],"stream":%b,"user":"%b"}' % (stream, script)
    head = f"POST {CHAT} HTTP/1.1\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    listener, server = bind("127.0.0.1", 0), make_server(create_app(gateway.services, "callers"), 1)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.wait_started(serving)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(head.encode() + body)
    await until(spare.book, "the provider to be asked")
    writer.write_eof()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()

    async def stopped() -> bool:
        return [entry["ended"] for entry in await spare.book()] == ["left"]

    await until(stopped, "the provider to be told")
    assert (await gateway.only_row())["status"] == "cancelled"
    server.ask_to_stop()
    await serving


async def test_rule_21_a_stream_that_breaks_off_is_counted_the_same_way(counting: Gateway, up: Upstream) -> None:
    answer, _ = await counting.stream("text=abcdefghij;chunks=6;gap_ms=5;cut=4")
    row = await counting.row(answer)
    assert (row["status"], row["tokens"]["output"], row["estimated"]) == ("incomplete", 40, True)
