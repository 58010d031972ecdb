"""The one connection to the limit store: nothing is mixed up, a burst is no outage, and a dead server is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.pipeline import Pipeline, Unreachable
from gateway.admission.resp import ErrorReply, Parser, command, word
from tests.fixtures.valkey import ValkeyServer

_replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40), lambda inner: st.lists(inner, max_size=4)
)


def _wire(reply: object) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return word(reply)
    assert isinstance(reply, list)
    return b"*%d\r\n" % len(reply) + b"".join(map(_wire, reply))


@given(st.lists(_replies, max_size=6), st.integers(1, 17))
def test_replies_are_the_same_however_they_are_cut(replies: list[object], size: int) -> None:
    wire, parser, found = b"".join(map(_wire, replies)), Parser(), list[object]()
    for start in range(0, len(wire), size):
        found += parser.feed(wire[start : start + size])
    assert found == replies


def test_simple_replies_errors_and_nonsense() -> None:
    ok, error, nothing = Parser().feed(b"+OK\r\n-NOSCRIPT gone\r\n*-1\r\n")
    assert (ok, str(error), type(error), nothing) == (b"OK", "NOSCRIPT gone", ErrorReply, None)
    with pytest.raises(ValueError, match="begins with"):
        list(Parser().feed(b"HTTP/1.1 400\r\n"))


async def test_two_thousand_callers_at_once_get_their_own_answers_over_one_connection(
    valkey_server: ValkeyServer,
) -> None:
    pipeline = Pipeline(valkey_server.url, 5)
    texts = [f"text {number}" for number in range(2000)]
    answers = await asyncio.gather(*(pipeline.execute(command("ECHO", text)) for text in texts))
    assert answers == [text.encode() for text in texts]
    given_up = asyncio.ensure_future(pipeline.execute(command("ECHO", "nobody waits for this")))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await pipeline.execute(command("ECHO", "next")) == b"next"
    with pytest.raises(ErrorReply, match="unknown command"):
        await pipeline.execute(command("NONSENSE"))
    await pipeline.aclose()
    with pytest.raises(Unreachable):
        await asyncio.wait_for(Pipeline("redis://127.0.0.1:1/0", 5).execute(command("PING")), 20)


async def test_a_busy_loop_is_not_taken_for_a_server_that_is_away(valkey_server: ValkeyServer) -> None:
    pipeline = Pipeline(valkey_server.url, 0.2)
    for _ in range(20):
        try:
            await pipeline.execute(command("PING"))
            break
        except Unreachable:
            continue
    waiting = [asyncio.ensure_future(pipeline.execute(command("ECHO", number))) for number in range(100)]
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251  # as a burst of requests would keep it busy: the answers lie in the socket
    assert await asyncio.gather(*waiting) == [b"%d" % number for number in range(100)]
    await pipeline.aclose()


async def test_rule_15_a_frozen_server_fails_all_that_waits_at_once_and_answers_again_when_it_is_back(
    tmp_path: Path,
) -> None:
    server = ValkeyServer(tmp_path)
    server.start()
    pipeline = Pipeline(server.url, 0.2)
    try:
        server.freeze()
        began = time.monotonic()
        answers = await asyncio.gather(
            *(pipeline.execute(command("ECHO", number)) for number in range(100)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {Unreachable}
        assert time.monotonic() - began < 3
        server.thaw()
        deadline = time.monotonic() + 10
        while True:
            try:
                assert await pipeline.execute(command("ECHO", "back")) == b"back"
                break
            except Unreachable:
                assert time.monotonic() < deadline
    finally:
        await pipeline.aclose()
        server.stop()


async def test_credentials_database_and_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "v.sock"
    server = ValkeyServer(tmp_path, "--unixsocket", str(path))
    server.start()
    try:
        server.command("CONFIG", "SET", "requirepass", "s3cret@")
        for url in (f"redis://:s3cret%40@127.0.0.1:{server.port}/3", f"unix://:s3cret%40@{path}?db=3"):
            pipeline = Pipeline(url, 5)
            info = await pipeline.execute(command("CLIENT", "INFO"))
            assert isinstance(info, bytes) and b" db=3 " in info
            await pipeline.aclose()
        wrong = Pipeline(f"redis://:guess@127.0.0.1:{server.port}/0", 5)
        with pytest.raises(Unreachable, match="WRONGPASS") as caught:
            await wrong.execute(command("PING"))
        assert "guess" not in str(caught.value)
        await wrong.aclose()
    finally:
        server.stop()


async def test_tls_is_checked_against_the_named_authorities(valkey_server: ValkeyServer, tmp_path: Path) -> None:
    """The server of the tests speaks no TLS; a proxy in front of it does."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(str(trusted))
    trustme.CA().cert_pem.write_to_path(str(other))

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", valkey_server.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    proxy = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    address = f"rediss://localhost:{proxy.sockets[0].getsockname()[1]}/0"
    for options, taken in (
        (f"ssl_ca_certs={trusted}", True),
        ("ssl_cert_reqs=none", True),
        (f"ssl_ca_certs={other}", False),
        ("", False),
    ):
        pipeline = Pipeline(f"{address}?{options}", 5)
        if taken:
            assert await pipeline.execute(command("ECHO", "over TLS")) == b"over TLS"
        else:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await pipeline.execute(command("PING"))
        await pipeline.aclose()
    proxy.close()
