"""Events on their way out, over real databases and a real socket: told once, sent until taken, signed, never astray."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import AsyncExitStack
from ipaddress import ip_address, ip_network

import pytest
import trustme
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from gateway.metrics import Metrics
from gateway.secret import Secret
from gateway.webhooks import outbox, webhooks
from gateway.webhooks.addresses import ForbiddenAddress, permitted, resolve
from gateway.webhooks.outbox import Event
from gateway.webhooks.sender import Sender, Undelivered
from gateway.webhooks.signing import HEADER, sign, verify
from gateway.webhooks.tables import webhook_events
from gateway.webhooks.webhooks import Webhooks, pause_s
from tests.gateway.webhooks.receiver import Receiver, receiving

SECRET = "a long random text"
HERE = (ip_network("127.0.0.0/8"),)


def event(number: int = 1, keep_until_us: int | None = None) -> Event:
    return Event(f"test/{number}", "test.happened", {"number": number, "whose": None}, keep_until_us)


def sender(receiver: Receiver) -> Sender:
    return Sender(receiver.url, Secret(SECRET), HERE, timeout_s=10)


async def make_due(database: AsyncEngine) -> None:
    """As if every pause were over."""
    table = webhook_events
    async with database.begin() as connection:
        await connection.execute(update(table).where(table.c.next_at_us.is_not(None)).values(next_at_us=1))


async def test_five_processes_that_all_tell_of_the_same_fifty_events_deliver_each_once(
    database: AsyncEngine, database_url: str
) -> None:
    first: list[int] = []
    async with receiving() as receiver, AsyncExitStack() as stack:
        running = []
        for _ in range(5):
            engine = open_database(database_url)
            stack.push_async_callback(engine.dispose)
            each = Webhooks(engine, Metrics(), sender(receiver), round_s=0.01)
            each.start()
            running.append(each)
        for number in range(50):
            for each in running:
                assert each.tell(event(number), lambda number=number: first.append(number))  # type: ignore[misc]
        deadline = time.monotonic() + 30
        while len(receiver.got) < 50 or await waiting(database):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        for each in running:
            await each.stop()
        late = Webhooks(database, Metrics(), sender(receiver))  # after a restart
        late.tell(event(7), lambda: first.append(7))
        await late.round()
        await late.stop()
    assert sorted(first) == list(range(50))
    assert sorted(each["id"] for each in receiver.events) == sorted(f"test/{number}" for number in range(50))


async def waiting(database: AsyncEngine) -> int:
    async with database.connect() as connection:
        return await outbox.pending(connection)


async def test_what_is_not_taken_is_sent_again_later_each_time_with_a_true_signature(database: AsyncEngine) -> None:
    metrics = Metrics()
    async with receiving(500, 404, 302) as receiver:
        told = Webhooks(database, metrics, sender(receiver))
        told.tell(event())
        for tries in range(1, 5):
            await told.round()
            await told.round()  # not before its time
            assert len(receiver.got) == tries
            await make_due(database)
        await told.round()
        await told.stop()
    assert {each[":request"] for each, _ in receiver.got} == {"POST /hook?who=us HTTP/1.1"}
    assert {body for _, body in receiver.got} == {receiver.got[0][1]}
    assert receiver.events[0]["data"] == {"number": 1, "whose": None}
    assert receiver.events[0]["type"] == "test.happened"
    for headers, body in receiver.got:
        assert headers["x-metergate-event-id"] == "test/1"
        assert headers["host"] == f"127.0.0.1:{receiver.port}"
        assert verify(SECRET, body, headers[HEADER], int(time.time()))
    sample = metrics.registry.get_sample_value
    assert sample("metergate_webhooks_total", {"result": "failed"}) == 3
    assert sample("metergate_webhooks_total", {"result": "delivered"}) == 1
    assert sample("metergate_webhooks_pending") == 0


async def test_pauses_grow_and_end(database: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [round(pause_s(tries) / webhooks.FIRST_PAUSE_S, 1) // 0.8 >= 2**tries for tries in range(9)] == [True] * 9
    assert sum(pause_s(tries) for tries in range(webhooks.MOST_ATTEMPTS)) > 16 * 3600
    monkeypatch.setattr(webhooks, "MOST_ATTEMPTS", 2)
    metrics = Metrics()
    async with receiving(500, 500) as receiver:
        told = Webhooks(database, metrics, sender(receiver))
        told.tell(event())
        for _ in range(3):
            await told.round()
            await make_due(database)
        await told.stop()
    assert len(receiver.got) == 2
    assert metrics.registry.get_sample_value("metergate_webhooks_total", {"result": "given_up"}) == 1
    async with database.connect() as connection:
        assert await connection.scalar(select(webhook_events.c.error)) == "answered with status 500"


async def test_the_queue_is_bounded_in_memory_and_in_the_database(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MOST_HELD", 4)
    monkeypatch.setattr(outbox, "MOST_PENDING", 3)
    metrics, told = Metrics(), list[int]()
    async with receiving(*[500] * 10) as receiver:
        kept = Webhooks(database, metrics, sender(receiver))
        assert [kept.tell(event(number), lambda: told.append(1)) for number in range(6)] == [True] * 4 + [False] * 2
        await kept.round()
        await kept.stop()
    assert len(receiver.got) == 3 and len(told) == 4
    assert metrics.registry.get_sample_value("metergate_webhooks_total", {"result": "dropped"}) == 2


async def test_without_a_receiver_each_event_is_still_told_once_and_forgotten_after_its_time(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[str] = []
    told = Webhooks(database, Metrics())
    for _ in range(2):
        told.tell(event(1, keep_until_us=5), lambda: first.append("once"))
        told.tell(event(2), lambda: first.append("for ever"))
        await told.round()
    assert first == ["once", "for ever"] and await waiting(database) == 0
    monkeypatch.setattr(webhooks, "FORGET_EVERY_S", -1)
    await told.round()
    async with database.connect() as connection:
        assert list(await connection.scalars(select(webhook_events.c.key))) == ["test/2"]


async def test_an_event_of_a_process_that_died_while_sending_is_anothers_after_its_lease(database: AsyncEngine) -> None:
    async with receiving() as receiver:
        alive = Webhooks(database, Metrics(), sender(receiver))
        async with database.begin() as connection:
            await outbox.enqueue(connection, [event()], 1, send=True)
        async with database.begin() as connection:
            (due,) = await outbox.due(connection, 2, 10)
            assert await outbox.claim(connection, due, time.time_ns() // 1000)
            assert not await outbox.claim(connection, due, time.time_ns() // 1000)
        await alive.round()
        assert receiver.got == []
        await make_due(database)
        await alive.round()
        assert len(receiver.got) == 1
        await alive.stop()


@pytest.mark.parametrize(
    "address",
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 240.0.0.1 ::1 ::"
    " fe80::1 fc00::1 fec0::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::a00:1 2002:7f00:1:: 2001:db8::1"
    " 192.0.0.192 168.63.129.16 192.88.99.1 ::ffff:168.63.129.16 64:ff9b::a83f:8110 64:ff9b:1::1 2002:a83f:8110:: 3fff::1"
    " 3fff::1 3fff:fff::1 5f00::1".split(),
)
def test_rule_30_nothing_is_sent_to_an_address_that_is_not_public_unless_it_is_named(address: str) -> None:
    one = ip_address(address)
    assert not permitted(one, [])
    assert not permitted(one, [ip_network("203.0.113.0/24")])
    assert permitted(one, [ip_network(address)])


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "168.63.129.17", "192.0.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"]
)
def test_public_addresses_are_permitted(address: str) -> None:
    assert permitted(ip_address(address), [])


async def test_rule_30_the_address_is_checked_after_resolution_and_nothing_is_sent() -> None:
    with pytest.raises(ForbiddenAddress, match="name its network"):
        await resolve("localhost", 80, [])
    async with receiving() as receiver:
        (due,) = [outbox.Pending("k", "k", "{}", 0, 1)]
        careful = Sender(receiver.url, Secret(SECRET))
        with pytest.raises(Undelivered, match="no public address"):
            await careful.send(due)
        await careful.aclose()
    assert receiver.got == []


def test_a_signature_is_of_this_body_this_secret_and_this_time() -> None:
    header = sign(SECRET, b"body", 1_000)
    assert header.startswith("t=1000,v1=")
    assert verify(SECRET, b"body", header, 1_100)
    for secret, body, now_s in ((SECRET, b"bodY", 1_100), ("other", b"body", 1_100), (SECRET, b"body", 2_000)):
        assert not verify(secret, body, header, now_s)
    for nonsense in ("", "t=,v1=", "v1=abc", header.replace("t=1000", "t=1001"), "t=१०००,v1=a"):
        assert not verify(SECRET, b"body", nonsense, 1_000)
    assert not verify("", b"body", header, 1_000)


@pytest.mark.parametrize("name, taken", [("localhost", True), ("127.0.0.1", False), ("other.example", False)])
async def test_a_certificate_must_be_the_names_although_the_connection_goes_to_a_checked_address(
    name: str, taken: bool
) -> None:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert(name).configure_cert(server)
    authority.configure_trust(client)
    networks = (*HERE, ip_network("::1/128"))
    async with receiving(tls=server) as receiver:
        careful = Sender(f"https://localhost:{receiver.port}/hook", Secret(SECRET), networks, trust=client)
        if taken:
            await careful.send(outbox.Pending("k", "k", "{}", 0, 1))
        else:
            with pytest.raises(Undelivered, match="CERTIFICATE_VERIFY_FAILED"):
                await careful.send(outbox.Pending("k", "k", "{}", 0, 1))
        await careful.aclose()
    assert [headers["host"] for headers, _ in receiver.got] == [f"localhost:{receiver.port}"] * taken
