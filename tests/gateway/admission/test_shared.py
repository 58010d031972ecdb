"""Rule 15: the shared store frozen, gone, wiped or put back from an old copy; requests neither hang nor get free money."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.admission.claims import Answer, Base, BudgetWindow, Claim, Granted, Refused
from gateway.admission.shared import Policy, SharedStore
from gateway.admission.store import StoreUnavailable
from gateway.admission.valkey import ValkeyStore
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.admission.helpers import charge, claim, granted, refused, running, seeded, spent_and_reserved

DAY = BudgetWindow(1, "0-")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path)
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def shared(
    server: ValkeyServer,
    policy: Policy = "closed",
    states: list[bool] | None = None,
    on_reset: Callable[[], None] | None = None,
) -> AsyncIterator[SharedStore]:
    remote = ValkeyStore(server.url, timeout_s=0.25, heal_us=500_000)
    store = SharedStore(remote, policy, on_state=None if states is None else states.append, on_reset=on_reset)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 10) -> None:
    deadline = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def admitted(store: SharedStore, request: Claim) -> Answer | None:
    try:
        return await store.admit(request)
    except StoreUnavailable:
        return None


def total(nano: int, limit: int, hard: bool = True) -> Claim:
    return claim(charge(nano, limit, window="0-", hard=hard))


async def test_rule_15_a_frozen_server_costs_a_timeout_once_and_then_nothing(server: ValkeyServer) -> None:
    states: list[bool] = []
    async with shared(server, states=states) as store:
        await seeded(store, 1, window="0-")
        before = total(100, 1000)
        granted(await store.admit(before))
        server.freeze()
        try:
            began = time.monotonic()
            answers = await asyncio.gather(*(admitted(store, total(100, 1000)) for _ in range(50)))
            assert answers == [None] * 50
            assert time.monotonic() - began < 2
            began = time.monotonic()
            for _ in range(100):
                assert await admitted(store, total(100, 1000)) is None
            assert (time.monotonic() - began) / 100 < 0.005
            assert await store.settle(before, 0, {1: 70})
        finally:
            server.thaw()
        await until(lambda: _is(lambda: store.up and store.owes == 0))
        await until(lambda: _equals(spent_and_reserved(store, window="0-"), (70, 0)))
        assert states == [False, True, False, True]


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


async def _equals(work: Awaitable[object], expected: object) -> bool:
    return await work == expected


@pytest.mark.parametrize("harm", ["wipe", "kill", "old copy"])
async def test_rule_15_a_server_that_lost_its_data_is_told_everything_before_it_admits(
    server: ValkeyServer, harm: str
) -> None:
    resets: list[str] = []
    async with shared(server, on_reset=lambda: resets.append(harm)) as one, shared(server) as two:
        await seeded(one, 1, window="0-", spent=1000)
        assert resets == []
        if harm == "old copy":
            assert server.command("SAVE") == b"+OK"
        held, settled = total(300, 10_000), total(300, 10_000)
        for store, request in ((one, held), (two, settled)):
            granted(await store.admit(request))
        await two.settle(settled, 0, {1: 250})
        if harm == "wipe":
            server.wipe()
        else:
            server.kill()
            server.start()
        refusals = 0
        deadline = time.monotonic() + 15
        while True:
            assert time.monotonic() < deadline
            answer = await admitted(one, total(1, 10_000))
            if answer is not None:
                break
            refusals += 1
            await asyncio.sleep(0.01)
        assert refusals  # closed: nothing while it heals
        assert resets == [harm]
        assert not isinstance(answer, Granted)  # nor before the database was asked
        listed = await one.unshipped([DAY], 100)
        assert listed.settled == {settled.request_id: {DAY: 250}}
        assert await one.reconcile({DAY: Base(1000, listed.versions[DAY])}, [])
        assert await spent_and_reserved(one, window="0-") == (1250, 300)
        assert refused(await two.admit(total(8451, 10_000))).available_nano == 8450
        granted(await two.admit(total(8450, 10_000)))
        await one.settle(held, 0, {1: 300})
        assert await spent_and_reserved(one, window="0-") == (1550, 8450)
        assert await running(one) == 1


async def test_a_server_back_from_a_long_silence_is_not_told_again_what_it_has_shipped(server: ValkeyServer) -> None:
    async with shared(server) as one, shared(server) as two:
        await seeded(one, 1, window="0-", spent=1000)
        request = total(300, 10_000)
        granted(await one.admit(request))
        await one.settle(request, 0, {1: 250})
        listed = await two.unshipped([DAY], 100)
        assert await two.reconcile({DAY: Base(1250, listed.versions[DAY])}, [request.request_id])
        server.freeze()
        await until(lambda: _is(lambda: not one.up))
        server.thaw()
        world = (server.command("GET", "{metergate}:epoch") or b"").splitlines()[1].decode()
        server.command("HDEL", f"{{metergate}}:{world}", f"l:{request.request_id.hex}")  # as 120 s of silence do
        await until(lambda: _is(lambda: one.up))
        assert await spent_and_reserved(one, window="0-") == (1250, 0)


async def test_policy_open_lets_pass_uncounted_and_counts_what_was_spent_afterwards(server: ValkeyServer) -> None:
    async with shared(server, "open") as store:
        await seeded(store, 1, window="0-")
        server.freeze()
        try:
            requests = [total(900, 1000) for _ in range(3)]
            for request in requests:
                granted(await store.admit(request))
            await store.settle(requests[0], 0, {1: 500})
        finally:
            server.thaw()
        await until(lambda: _is(lambda: store.up and store.owes == 0))
        await until(lambda: _equals(spent_and_reserved(store, window="0-"), (500, 1800)))
        assert refused(await store.admit(total(1, 1000))).by == "budget"
        for request in requests[1:]:
            await store.release(request)
        assert await spent_and_reserved(store, window="0-") == (500, 0)


async def test_policy_local_share_divides_every_limit_among_the_living(server: ValkeyServer) -> None:
    async with shared(server, "local_share") as one, shared(server, "local_share") as two:
        await until(lambda: _is(lambda: one.processes == 2 and two.processes == 2))
        await seeded(one, 1, window="0-")
        server.freeze()
        try:
            await until(lambda: _is(lambda: not one.up and not two.up))
            passed = 0
            for store in (one, two):
                await seeded(store, 1, window="0-", spent=200)
                for _ in range(10):
                    answer = await store.admit(claim(charge(100, 1001, window="0-"), key="key_b", requests=100))
                    passed += isinstance(answer, Granted)
            assert passed == 8
            for store in (one, two):
                answers = [await store.admit(claim(requests=7)) for _ in range(7)]
                assert sum(isinstance(answer, Granted) for answer in answers) == 3
                assert isinstance(await store.admit(claim(requests=0, key="key_c")), Refused)
        finally:
            server.thaw()


async def test_rule_12_a_cancelled_admission_gives_back_what_it_may_have_taken(server: ValkeyServer) -> None:
    async with shared(server) as store:
        await seeded(store, 1, window="0-")
        tasks = [asyncio.create_task(store.admit(total(10, 1000))) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        kept = sum(isinstance(answer, Granted) for answer in answers)
        await until(lambda: _equals(spent_and_reserved(store, window="0-"), (0, kept * 10)))


async def test_a_server_that_is_not_there_at_the_start_is_joined_when_it_comes(server: ValkeyServer) -> None:
    server.kill()
    async with shared(server) as store:
        assert not store.up
        assert await admitted(store, total(1, 1)) is None
        server.start()
        await until(lambda: _is(lambda: store.up))


async def test_one_slot_of_a_cluster_holds_everything(tmp_path: Path) -> None:
    """A server in cluster mode refuses a script whose keys lie in different slots."""
    server = ValkeyServer(tmp_path, "--cluster-enabled", "yes")
    server.start()
    try:
        assert server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == b"+OK"
        deadline = time.monotonic() + 10
        while b"cluster_state:ok" not in (server.command("CLUSTER", "INFO") or b""):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        async with shared(server) as store:
            await seeded(store, 1, 2, window="0-")
            request = claim(
                charge(5, 10, window="0-"), charge(5, 10, 2, window="0-"), requests=3, tokens_limit=9, tokens=2
            )
            granted(await store.admit(request))
            granted(await store.amend(request, 3, request.charges))
            await store.renew([request])
            await store.settle(request, 1, {1: 4, 2: 5})
            listed = await store.unshipped([DAY], 10)
            assert await store.reconcile({DAY: Base(4, listed.versions[DAY])}, list(listed.settled))
            assert await spent_and_reserved(store, window="0-") == (4, 0)
            server.wipe()
            await until(lambda: _is(lambda: store.up), 5)
    finally:
        server.stop()
