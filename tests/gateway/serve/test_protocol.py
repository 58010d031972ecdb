"""The server protocol over raw sockets: what uvicorn's own does, and what it must not do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.keepalive import IDLE_S, INTERVAL_S, PROBES
from gateway.serve.preflight import bind
from gateway.serve.protocol import BODY_S, HEAD_S, MAX_HEAD_BYTES, REQUEST_HIGH, HttpProtocol
from gateway.serve.server import make_server
from tests.gateway.open_sockets import keepalive_of, socket_towards

App = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[int]:
    listener = bind("127.0.0.1", 0)
    server = make_server(app, 60)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await server.wait_started(task)
    try:
        yield listener.getsockname()[1]
    finally:
        server.ask_to_stop()
        server.ask_to_stop()
        await task


async def read_body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body = b""
    while True:
        message: dict[str, Any] = await receive()
        body += bytes(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message["more_body"]:
            return body


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = await read_body(receive)
    text = b"%b %b?%b %b" % (scope["method"].encode(), scope["path"].encode(), scope["query_string"], body)
    length = str(len(text)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": text})


async def call(port: int, *pieces: bytes) -> bytes:
    """Everything the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


def request(path: str = "/x", body: bytes = b"", close: bool = True, method: str = "POST", extra: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: h\r\n{extra}content-length: {len(body)}\r\n"
    return (head + ("connection: close\r\n" if close else "") + "\r\n").encode() + body


def bodies(answer: bytes) -> list[bytes]:
    """The bodies of answers that all have a content-length."""
    found = []
    while answer:
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        found.append(rest[:length])
        answer = rest[length:]
    return found


async def test_a_request_is_answered_with_its_path_query_and_body() -> None:
    async with serving(echo) as port:
        answer = await call(port, request("/a%20b?c=d%20e", b"hello"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert bodies(answer) == [b"POST /a b?c=d%20e hello"]


async def test_a_request_cut_into_single_bytes_is_the_same_request() -> None:
    raw = request("/p?q", b"body")
    async with serving(echo) as port:
        answer = await call(port, *[raw[index : index + 1] for index in range(len(raw))])
    assert bodies(answer) == [b"POST /p?q body"]


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def later(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] == "/1":
            await asyncio.sleep(0.05)
        await echo(scope, receive, send)

    raw = request("/1", b"one", close=False) + request("/2", b"two", close=False) + request("/3", b"three")
    async with serving(later) as port:
        answer = await call(port, raw)
    assert bodies(answer) == [b"POST /1? one", b"POST /2? two", b"POST /3? three"]


async def test_a_chunked_request_body_is_joined() -> None:
    head = b"POST /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    raw = head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving(echo) as port:
        assert bodies(await call(port, raw)) == [b"POST /x? abcde"]


async def test_a_stream_goes_out_in_chunks_and_ends_properly() -> None:
    async def stream(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for word in (b"data: a\n\n", b"data: b\n\n"):
            await send({"type": "http.response.body", "body": word, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serving(stream) as port:
        answer = await call(port, request())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n"


async def ready_made(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """A stream as our own routes make it, past ASGI's messages."""
    exchange = send.__self__
    exchange.begin(200, b"content-type: text/event-stream\r\n")
    for word in (b"data: a\n\n", b"data: b\n\n"):
        await exchange.pass_on(word, True)
    await exchange.pass_on(b"", False)


async def in_messages(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for word in (b"data: a\n\n", b"data: b\n\n"):
        await send({"type": "http.response.body", "body": word, "more_body": True})
    await send({"type": "http.response.body"})


OLD = b"GET /x HTTP/1.0\r\nhost: h\r\n"


@pytest.mark.parametrize("app", [ready_made, in_messages])
@pytest.mark.parametrize("wish", [b"", b"connection: keep-alive\r\n"])
async def test_http_1_0_gets_a_stream_as_it_is_up_to_the_end_of_the_connection(app: App, wish: bytes) -> None:
    async with serving(app) as port:
        head, _, body = (await call(port, OLD + wish + b"\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.count(b"\r\nconnection: close") == 1
    assert b"transfer-encoding" not in head and b"keep-alive" not in head
    assert body == b"data: a\n\ndata: b\n\n"


async def test_http_1_0_keeps_a_connection_only_where_both_say_so() -> None:
    async def ready_made_whole(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send.__self__.answer(200, b"", b"abc")

    for app in (echo, ready_made_whole):
        async with serving(app) as port:
            alone = await call(port, OLD + b"\r\n")
            both = await call(port, OLD + b"connection: keep-alive\r\n\r\n", OLD + b"\r\n")
        assert b"\r\nconnection: close\r\n" in alone and len(bodies(alone)) == 1
        first, second = both.split(b"HTTP/1.1 200 OK")[1:]
        assert b"\r\nconnection: keep-alive\r\n" in first and b"\r\nconnection: close\r\n" in second


async def test_an_answer_over_http_1_1_says_nothing_of_keeping_the_connection() -> None:
    async with serving(echo) as port:
        answer = await call(port, request(close=False), request())
    assert b"connection:" not in answer.split(b"HTTP/1.1 200 OK")[1]


async def test_http_1_0_is_never_told_to_continue() -> None:
    raw = b"POST /x HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    async with serving(echo) as port:
        assert (await call(port, raw, b"ok")).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_what_follows_a_body_in_chunks_over_http_1_0_is_not_read_as_a_request() -> None:
    raw = b"POST /x HTTP/1.0\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    async with serving(echo) as port:
        assert len(bodies(await call(port, raw + OLD + b"\r\n"))) == 1


async def test_head_and_bodiless_answers_have_no_body() -> None:
    async def empty(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(echo) as port:
        answer = await call(port, request(method="HEAD"))
        assert answer.endswith(b"\r\n\r\n") and b"content-length: 9" in answer
    async with serving(empty) as port:
        answer = await call(port, request())
        assert answer.startswith(b"HTTP/1.1 204 No Content\r\n") and answer.endswith(b"\r\n\r\n")


async def test_expect_continue_is_answered_when_the_body_is_wanted() -> None:
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /x HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert bodies(await reader.read()) == [b"POST /x? ok"]
        writer.close()


async def test_what_is_not_http_gets_a_400_in_json() -> None:
    async with serving(echo) as port:
        answer = await call(port, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b'"code":"bad_http"' in answer


async def test_endless_headers_are_refused_while_reading() -> None:
    line = b"x-a: " + b"z" * 1000 + b"\r\n"
    async with serving(echo) as port:
        answer = await call(port, b"GET / HTTP/1.1\r\n" + line * (MAX_HEAD_BYTES // 1000 + 2))
    assert answer.startswith(b"HTTP/1.1 431 ") and b'"code":"headers_too_large"' in answer


async def test_rule_31_a_large_body_is_not_read_ahead_of_the_app() -> None:
    release = asyncio.Event()
    seen: list[int] = []

    async def slow(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await release.wait()
        message = await receive()
        seen.append(len(message["body"]))
        seen.append(len(await read_body(receive)) if message["more_body"] else 0)
        await echo(scope, receive, send)

    size = 16 << 20
    async with serving(slow) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % size)
        writer.write(b"x" * size)
        await asyncio.sleep(0.2)
        release.set()
        async with asyncio.timeout(20):
            while sum(seen) < size:
                await asyncio.sleep(0.01)
        writer.close()
    assert seen[0] <= REQUEST_HIGH + 262_144
    assert sum(seen) == size


async def test_rule_20_a_caller_that_leaves_is_told_to_the_app() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def wait(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await read_body(receive)
        told.put_nowait((await receive())["type"])

    async with serving(wait) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        await asyncio.sleep(0.05)
        writer.close()
        async with asyncio.timeout(1):
            assert await told.get() == "http.disconnect"


async def closing_its_side(port: int, raw: bytes) -> bytes:
    """Everything that a caller hears which says its request and that nothing more will come, as `nc -N` does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    writer.write_eof()
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_caller_that_closes_its_side_is_told_as_gone_and_still_answered() -> None:
    told: list[str] = []

    async def later(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await read_body(receive)
        told.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(later) as port:
        assert bodies(await closing_its_side(port, request(close=False))) == [b"ok"]
        assert bodies(await closing_its_side(port, request(close=False) * 3)) == [b"ok"] * 3
    assert told == ["http.disconnect"] * 4


async def test_a_caller_that_closes_its_side_hears_nothing_where_the_app_gives_up() -> None:
    async def gives_up(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await read_body(receive)
        await receive()

    async with serving(gives_up) as port:
        assert await closing_its_side(port, request(close=False)) == b""


async def test_a_stream_that_has_begun_is_cut_when_its_caller_closes_its_side() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def begun(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        told.put_nowait((await receive())["type"])
        await send({"type": "http.response.body", "body": b"more"})

    async with serving(begun) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False))
        await reader.readuntil(b"part\r\n")
        writer.write_eof()
        async with asyncio.timeout(5):
            assert (await reader.read(), await told.get()) == (b"", "http.disconnect")
        writer.close()


@pytest.mark.parametrize("begun", [b"GE", request(body=b"ten bytes!")[:-9]])
async def test_a_caller_that_closes_its_side_inside_a_request_is_closed(begun: bytes) -> None:
    async with serving(echo) as port:
        assert await closing_its_side(port, begun) == b""


async def test_rule_20_a_caller_that_is_lost_without_a_word_is_asked_for() -> None:
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False))
        await reader.readuntil(b"\r\n\r\n")
        with socket_towards(writer.get_extra_info("sockname")) as accepted:
            assert keepalive_of(accepted) == (True, IDLE_S, INTERVAL_S, PROBES)
        writer.close()


async def test_a_slow_caller_holds_back_the_app() -> None:
    sent = 0

    async def flood(scope: dict[str, Any], receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent += 1
        await send({"type": "http.response.body"})

    async with serving(flood) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 1000
        total = 0
        async with asyncio.timeout(20):
            while piece := await reader.read(1 << 20):
                total += len(piece)
        assert total > 65_536_000
        writer.close()


async def test_an_app_that_fails_before_its_answer_gives_a_500() -> None:
    async def broken(scope: dict[str, Any], receive: Any, send: Any) -> None:
        raise ValueError("secret")

    async with serving(broken) as port:
        answer = await call(port, request())
    assert answer.startswith(b"HTTP/1.1 500 ") and b"secret" not in answer


async def test_an_app_that_fails_in_the_middle_ends_without_a_proper_end() -> None:
    async def broken(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise ValueError("secret")

    async with serving(broken) as port:
        answer = await call(port, request())
    assert answer.endswith(b"4\r\npart\r\n")


@pytest.mark.parametrize("value", [b"a\r\nx-injected: 1", b"a\nb", b"a\rb"])
async def test_a_header_with_a_line_break_never_goes_out(value: bytes) -> None:
    async def inject(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", value)]})
        await send({"type": "http.response.body", "body": b"x"})

    async with serving(inject) as port:
        answer = await call(port, request())
    assert answer.startswith(b"HTTP/1.1 500 ") and b"x-injected" not in answer


class Wire(asyncio.Transport):
    """A connection of which nobody holds the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("begun", "patience_s"),
    [(b"GE", HEAD_S), (b"POST /x HTTP/1.1\r\n", HEAD_S), (request(body=b"ten bytes!")[:-9], BODY_S)],
)
async def test_what_stops_arriving_has_its_time_and_no_more(begun: bytes, patience_s: float) -> None:
    server, wire, loop = make_server(echo, 60), Wire(), asyncio.get_running_loop()
    connection = HttpProtocol(server.config, server.server_state, {})
    connection.connection_made(wire)
    connection.data_received(begun)
    connection.sweep(loop.time() + patience_s - 1)
    assert not wire.is_closing()
    connection.sweep(loop.time() + patience_s + 1)
    assert wire.is_closing() and wire.written.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    connection.connection_lost(None)


@pytest.mark.interpreted
@pytest.mark.parametrize("begun", [b"GE", b"POST /x HTTP/1.1\r\nhost: h\r\n", request(body=b"ten bytes!")[:-9]])
async def test_a_request_that_stops_arriving_is_ended(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.serve.protocol.HEAD_S", 0.2)
    monkeypatch.setattr("gateway.serve.protocol.BODY_S", 0.2)
    async with serving(echo) as port:
        answer = await call(port, begun)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and b'"code":"request_timeout"' in answer


@pytest.mark.interpreted
async def test_single_bytes_do_not_buy_a_head_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.serve.protocol.HEAD_S", 0.3)
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(reader.read())
        sent = False
        async with asyncio.timeout(5):
            while not answer.done():
                writer.write(b"x-a: b\r\n" if sent else b"GET / HTTP/1.1\r\n")
                sent = True
                await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionResetError):  # what was written after the end can cost the answer
            assert (await answer).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_body_that_cannot_be_read_is_a_400() -> None:
    raw = b"POST /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nabc\r\n"
    async with serving(echo) as port:
        assert (await call(port, raw)).startswith(b"HTTP/1.1 400 Bad Request\r\n")


async def test_an_offer_to_upgrade_is_ignored_and_answered() -> None:
    raw = request("/x", b"body", close=False, extra="connection: upgrade\r\nupgrade: h2c\r\n")
    async with serving(echo) as port:
        assert bodies(await call(port, raw)) == [b"POST /x? body"]


async def test_head_and_first_body_leave_in_one_piece() -> None:
    async with serving(echo) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(close=False))
        first = await reader.read(65_536)
        assert bodies(first) == [b"POST /x? "]
        writer.close()
