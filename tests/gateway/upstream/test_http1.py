"""The hot path's HTTP/1.1 client against real sockets that answer byte by byte what a test tells them."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trustme

from gateway.keepalive import IDLE_S, INTERVAL_S, PROBES
from gateway.upstream.errors import ConnectFailed, ConnectionLost, StaleConnection
from gateway.upstream.http1 import BUFFER_HIGH, Http1Transport
from tests.gateway.open_sockets import keepalive_of, socket_towards

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n" + b'{"ok":true}'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n"


@asynccontextmanager
async def provider(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https://localhost' if tls else 'http://127.0.0.1'}:{port}/v1/chat/completions"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


def answering(*answers: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()
        await reader.read()

    return script


async def test_a_whole_answer_arrives_with_status_and_headers() -> None:
    async with provider(answering(PLAIN)) as url:
        transport = Http1Transport()
        response = await transport.post(url, {"authorization": "Bearer x"}, b"{}")
        assert (response.status, response.header("content-type")) == (200, "application/json")
        assert await response.aread() == b'{"ok":true}'
        await response.aclose()
        await transport.aclose()


async def test_the_request_carries_host_length_headers_and_body() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(PLAIN)

    async with provider(script) as url:
        transport = Http1Transport()
        await (await transport.post(url, {"x-request-id": "abc"}, b'{"a":1}')).aread()
        await transport.aclose()
    head, body = seen[0]
    port = url.split(":")[2].split("/")[0].encode()
    assert head == (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:"
        + port
        + b"\r\nx-request-id: abc\r\ncontent-length: 7\r\n\r\n"
    )
    assert body == b'{"a":1}'


async def test_an_answer_cut_into_single_bytes_is_the_same_answer() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for index in range(len(CHUNKED)):
            writer.write(CHUNKED[index : index + 1])
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with provider(script) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        assert await response.aread() == b"abcdefg"
        await transport.aclose()


async def test_a_burst_of_chunks_arrives_as_one_piece() -> None:
    burst = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500 + b"0\r\n\r\n"
    async with provider(answering(burst)) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        assert await response.read_chunk() == b"x" * 500
        assert await response.read_chunk() is None
        await transport.aclose()


async def test_a_connection_is_used_again_after_a_complete_answer() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(PLAIN, CHUNKED, PLAIN)(reader, writer)

    async with provider(script) as url:
        transport = Http1Transport()
        for expected in (b'{"ok":true}', b"abcdefg", b'{"ok":true}'):
            response = await transport.post(url, {}, b"")
            assert await response.aread() == expected
            await response.aclose()
            await response.aclose()
        assert connections == 1
        await transport.aclose()


@pytest.mark.parametrize("cut", range(46, len(CHUNKED)))
async def test_rule_21_a_body_cut_at_any_byte_is_a_lost_connection_never_a_clean_end(cut: int) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED[:cut])

    async with provider(script) as url:
        transport = Http1Transport()
        with pytest.raises(ConnectionLost):
            await (await transport.post(url, {}, b"")).aread()
        await transport.aclose()


async def test_what_came_before_the_cut_is_delivered_first() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n")

    async with provider(script) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        assert await response.read_chunk() == b"abcd"
        with pytest.raises(ConnectionLost):
            await response.read_chunk()
        await transport.aclose()


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with provider(script) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        assert await response.aread() == b"all of it"
        await transport.aclose()


async def test_informational_answers_are_passed_over() -> None:
    async with provider(answering(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + PLAIN)) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        assert (response.status, await response.aread()) == (200, b'{"ok":true}')
        assert response.header("link") is None
        await transport.aclose()


async def test_a_compressed_answer_is_inflated() -> None:
    body = gzip.compress(b'{"ok":true}' * 100)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with provider(answering(head + body)) as url:
        transport = Http1Transport()
        assert await (await transport.post(url, {}, b"")).aread() == b'{"ok":true}' * 100
        await transport.aclose()


async def test_rule_20_closing_a_running_answer_drops_its_connection() -> None:
    left = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n")
        try:
            assert await reader.read() == b""
        finally:
            left.set()

    async with provider(script) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        assert await response.read_chunk() == b"abcd"
        await response.aclose()
        async with asyncio.timeout(1):
            await left.wait()
        await transport.aclose()


async def test_rule_20_cancelling_a_call_that_waits_for_its_headers_drops_the_connection() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        try:
            await reader.read()
        finally:
            left.set()

    async with provider(script) as url:
        transport = Http1Transport()
        call = asyncio.create_task(transport.post(url, {}, b""))
        async with asyncio.timeout(1):
            await asked.wait()
            call.cancel()
            await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await call
        await transport.aclose()


async def test_a_slow_reader_slows_the_provider_and_memory_stays_bounded() -> None:
    size = 64 * 1024 * 1024
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        piece = b"x" * 65_536
        while sent < size:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        await reader.read()

    async with provider(script) as url:
        transport = Http1Transport()
        response = await transport.post(url, {}, b"")
        before = -1
        while sent != before:  # until the sockets' own buffers are full and the provider stands still
            before = sent
            await asyncio.sleep(0.05)
        assert sent < size
        got = 0
        largest = 0
        while (piece := await response.read_chunk()) is not None:
            got += len(piece)
            largest = max(largest, len(piece))
        assert got == size
        assert largest <= BUFFER_HIGH + 2 * 262_144
        await transport.aclose()


async def test_a_pooled_connection_that_the_provider_closed_is_not_used() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(PLAIN)

    async with provider(script) as url:
        transport = Http1Transport()
        for _ in range(2):
            response = await transport.post(url, {}, b"")
            assert await response.aread() == b'{"ok":true}'
            await response.aclose()
            await asyncio.sleep(0.02)
        assert connections == 2
        await transport.aclose()


async def test_one_stale_connection_takes_those_that_rested_with_it_out_of_the_pool() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections > 3:
            await answering(PLAIN)(reader, writer)
            return
        await read_request(reader)
        writer.write(PLAIN)
        await read_request(reader)  # and goes away without a word, as behind a router that has forgotten it
        writer.transport.abort()

    async with provider(script) as url:
        transport = Http1Transport()
        answers = await asyncio.gather(*[transport.post(url, {}, b"") for _ in range(3)])
        for answer in answers:
            assert await answer.aread() == b'{"ok":true}'
            await answer.aclose()
        with pytest.raises(StaleConnection):
            await transport.post(url, {}, b"")
        response = await transport.post(url, {}, b"")
        assert await response.aread() == b'{"ok":true}'
        assert connections == 4
        await transport.aclose()


async def test_a_new_connection_that_is_cut_is_not_stale() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.transport.abort()

    async with provider(script) as url:
        transport = Http1Transport()
        with pytest.raises(ConnectionLost) as lost:
            await transport.post(url, {}, b"")
        assert not isinstance(lost.value, StaleConnection)
        await transport.aclose()


@pytest.mark.parametrize(
    "surplus", [PLAIN, PLAIN[:40], b"HTTP/1.1 2", b"HTTP/1.1 500 No\r\nx-surplus: 1\r\ncontent-length: 3\r\n\r\nbad"]
)
async def test_what_comes_behind_an_answer_is_not_read_and_ends_its_connection(surplus: bytes) -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(PLAIN + surplus)(reader, writer)

    async with provider(script) as url:
        transport = Http1Transport()
        for _ in range(2):
            response = await transport.post(url, {}, b"")
            assert (response.status, await response.aread()) == (200, b'{"ok":true}')
            assert response.header("x-surplus") is None
            await response.aclose()
        assert connections == 2
        await transport.aclose()


async def test_something_that_is_not_http_is_a_lost_connection() -> None:
    async with provider(answering(b"SSH-2.0-OpenSSH\r\n\r\n")) as url:
        transport = Http1Transport()
        with pytest.raises(ConnectionLost, match="not HTTP"):
            await transport.post(url, {}, b"")
        await transport.aclose()


async def test_headers_without_end_are_refused() -> None:
    async with provider(
        answering(b"HTTP/1.1 200 OK\r\n" + b"x-y: " + b"z" * 8000 + b"\r\n" + b"x-y: z\r\n" * 20_000)
    ) as url:
        transport = Http1Transport()
        with pytest.raises(ConnectionLost):
            await transport.post(url, {}, b"")
        await transport.aclose()


async def test_nobody_listening_is_a_failed_connect() -> None:
    async with provider(answering(PLAIN)) as url:
        pass
    transport = Http1Transport()
    with pytest.raises(ConnectFailed):
        await transport.post(url, {}, b"")


async def test_a_header_with_a_line_break_never_reaches_the_wire() -> None:
    async with provider(answering(PLAIN)) as url:
        transport = Http1Transport()
        with pytest.raises(ConnectFailed, match="line break"):
            await transport.post(url, {"x-a": "b\r\nx-c: d"}, b"")


async def test_tls_is_verified_against_the_name_and_the_authority() -> None:
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with provider(answering(PLAIN), served) as url:
        transport = Http1Transport(tls=trusting)
        assert await (await transport.post(url, {}, b"")).aread() == b'{"ok":true}'
        await transport.aclose()
        with pytest.raises(ConnectFailed, match="certificate"):
            await Http1Transport().post(url, {}, b"")


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_provider_that_is_lost_without_a_word_is_asked_for(scheme: str) -> None:
    authority = trustme.CA()
    served, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(served)
    authority.configure_trust(trusting)
    async with provider(answering(PLAIN), served if scheme == "https" else None) as url:
        transport = Http1Transport(tls=trusting)
        await (await transport.post(url, {}, b"")).aread()
        port = int(url.split(":")[2].split("/")[0])
        with socket_towards(("127.0.0.1", port)) as connected:
            assert keepalive_of(connected) == (True, IDLE_S, INTERVAL_S, PROBES)
        await transport.aclose()
