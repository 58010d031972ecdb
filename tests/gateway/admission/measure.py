"""What admission costs, for the README's figures: `python -m tests.gateway.admission.measure`. Not a test.

Memory: CPU per request of admit + settle with 2 limits and 2 hard budgets, the store alone and the whole of `Admission`, against
an empty coroutine pair as the floor, interleaved; the median of the rounds. Valkey: the server's own time per script call
(commandstats) under pipelined load from one client, because a client that waits leaves the server's caches cold.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import msgspec

from billing.budgets import period_bounds
from billing.database import open_database
from billing.usage import Usage
from gateway.admission import valkey
from gateway.admission.claims import Base, BudgetWindow, Charge, Claim, Granted, Scope
from gateway.admission.limits import Limits
from gateway.admission.memory import MemoryStore
from gateway.database import upgrade
from gateway.ids import new_request_id
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.admission.house import CHEAP, House

ROUNDS, REQUESTS, CALLS = 15, 1000, 6000
LIMITS = Limits(10**9, 10**12, None)
DAY = BudgetWindow.name(*period_bounds("day", "Asia/Shanghai", time.time_ns() // 1000))


def _claim(ttl_us: int = 60_000_000) -> Claim:
    charges = tuple(Charge(each, 490_000, 10**17, DAY, None, True) for each in (1, 2))
    return Claim(new_request_id(), (Scope("key_a", LIMITS),), 1500, charges, ttl_us)


async def memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/metergate.db"
        await upgrade(url)
        database = open_database(url)
        house = await House.build(database, MemoryStore())
        for period in ("day", "month"):
            await house.budget("1000000", house.american, period=period, timezone="Asia/Shanghai")
        key = house.key(house.american, LIMITS)
        await house.admit(key)
        rated = house.rated(house.leases[0], Usage(input=900, output=100))
        store = MemoryStore()
        await store.reconcile({BudgetWindow(each, DAY): Base(0, 0) for each in (1, 2)}, [])

        async def nothing() -> None:
            async def pair() -> None: ...

            await pair()
            await pair()

        async def alone() -> None:
            claim = claims.pop()
            assert isinstance(await store.admit(claim), Granted)
            await store.settle(claim, 1000, {1: 400_000, 2: 400_000})

        async def whole() -> None:
            request_id = request_ids.pop()
            lease = await house.admission.admit(
                key, request_id=request_id, input_tokens=1000, output_cap=500, n=1,
                candidates=(CHEAP,), at_us=(request_id.int >> 80) * 1000,
            )  # fmt: skip
            await house.admission.settle(lease, rated=rated, tokens=1000)

        claims: list[Claim] = []
        request_ids: list[UUID] = []
        names: dict[str, Callable[[], Awaitable[None]]] = {
            "floor": nothing, "store": alone, "admission": whole,
        }  # fmt: skip
        found: dict[str, list[float]] = {name: [] for name in names}
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)  # as services.py does
        for _ in range(ROUNDS):
            for name, work in names.items():
                claims[:] = [_claim() for _ in range(REQUESTS)]
                request_ids[:] = [new_request_id() for _ in range(REQUESTS)]
                began = time.thread_time_ns()
                for _ in range(REQUESTS):
                    await work()
                found[name].append((time.thread_time_ns() - began) / REQUESTS / 1000)
        for name, figures in found.items():
            print(f"memory {name:9} median {statistics.median(figures):6.1f} us, best {min(figures):6.1f} us")
        await house.admission.stop()
        await database.dispose()


async def server_time() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = ValkeyServer(Path(folder))
        server.start()
        store = valkey.ValkeyStore(server.url, heal_us=0, timeout_s=5)
        await store.start()
        await store.reconcile({BudgetWindow(each, DAY): Base(0, 0) for each in (1, 2)}, [])
        await store.admit(warm := _claim())
        await store.settle(warm, 1, {1: 1, 2: 1})
        calls: list[bytes] = []

        async def keep(call: bytes, _: object) -> bytes:
            """The exact command that the store would send, and an answer that it takes."""
            calls.append(call)
            answer = ("ok", 0, True) if len(calls) % 2 == 0 else ("granted", 0, [])
            return msgspec.msgpack.encode(answer)

        run, store._run = store._run, keep  # type: ignore[method-assign, assignment]
        for _ in range(CALLS // 2):
            claim = _claim()
            await store.admit(claim)
            await store.settle(claim, 1000, {1: 400_000, 2: 400_000})
        for kind, chosen in (("admit", calls[::2]), ("settle", calls[1::2])):
            calls_us = []
            for start in range(0, len(chosen), 200):
                server.command("CONFIG", "RESETSTAT")
                await asyncio.gather(*(run(call, lambda: b"") for call in chosen[start : start + 200]))
                stats = server.command("INFO", "commandstats") or b""
                calls_us.append(
                    float(stats.partition(b"cmdstat_evalsha:")[2].partition(b"usec_per_call=")[2].split(b",")[0])
                )
            median = statistics.median(calls_us)
            print(f"valkey {kind:7} server time per call: median {median:.1f} us, best {min(calls_us):.1f} us")
        await store.stop()
        server.stop()


if __name__ == "__main__":
    asyncio.run(memory())
    asyncio.run(server_time())
