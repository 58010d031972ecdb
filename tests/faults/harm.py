"""The ways in which a fault run harms a gateway under traffic. Each one leaves everything running again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from tests.faults.callers import Wish, some_wishes
from tests.faults.stage import Stage


class Database(Protocol):
    """A server that can be harmed."""

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def crash(self) -> None: ...
    def start(self) -> None: ...


SERVED_S = 60.0
FULL_ROUNDS = 10
"""More than enough traffic for a segment and its spare."""

Harm = Callable[[Stage], Coroutine[Any, Any, None]]


async def _served(stage: Stage) -> None:
    """Until a request is answered: what was harmed before is over, the breaker before the provider closed again."""
    async with asyncio.timeout(SERVED_S):
        while not (await stage.callers.ask(Wish(stage.dice.randrange(1, 5000), 3, True))).complete:
            await asyncio.sleep(0.1)


async def _traffic(
    stage: Stage, wishes: list[Wish], harm: Callable[[], Awaitable[None]] | None = None, served: bool = True
) -> None:
    """All callers at once, each a little later than the one before, and the harm somewhere among them."""

    async def later(wish: Wish, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await stage.callers.ask(wish)

    if served:
        await _served(stage)
    work = [later(wish, stage.dice.uniform(0, 0.25)) for wish in wishes]
    await asyncio.gather(*work, *([harm()] if harm else []))


async def _a_moment(stage: Stage) -> None:
    await asyncio.sleep(stage.dice.uniform(0.0, 0.3))


def _with(stage: Stage) -> list[Wish]:
    return some_wishes(stage.dice, 12)


async def nothing(stage: Stage) -> None:
    await _traffic(stage, _with(stage))


async def kill(stage: Stage) -> None:
    """SIGKILL at a random moment, then a new process over the same folder."""

    async def harm() -> None:
        await _a_moment(stage)
        stage.gateway.kill()

    await _traffic(stage, _with(stage), harm)
    stage.gateway.start()
    await asyncio.to_thread(stage.gateway.wait_ready)


async def kill_twice(stage: Stage) -> None:
    """The second death comes while the first one's journal is being adopted."""
    await _traffic(stage, _with(stage), lambda: asyncio.to_thread(stage.gateway.kill))
    stage.gateway.start()
    await asyncio.to_thread(stage.gateway.wait_ready)
    await kill(stage)


async def kill_recorder(stage: Stage) -> None:
    """SIGKILL for the recorder alone, twice: the gateway goes on and starts another."""

    async def harm() -> None:
        for _ in range(2):
            await _a_moment(stage)
            for recorder in stage.gateway.recorders():
                os.kill(recorder, signal.SIGKILL)

    await _traffic(stage, _with(stage), harm)


async def freeze_recorder(stage: Stage) -> None:
    """It stands still in the middle of whatever it does, and goes on when the traffic is over."""
    stopped: list[int] = []

    async def harm() -> None:
        await _a_moment(stage)
        for recorder in stage.gateway.recorders():
            os.kill(recorder, signal.SIGSTOP)
            stopped.append(recorder)

    try:
        await _traffic(stage, _with(stage), harm)
    finally:
        for recorder in stopped:
            os.kill(recorder, signal.SIGCONT)


async def stop(stage: Stage) -> None:
    """SIGTERM: running streams are finished, the journal is shipped, and a new process goes on."""

    async def harm() -> None:
        await _a_moment(stage)
        await asyncio.to_thread(stage.gateway.stop)

    await _traffic(stage, _with(stage), harm)
    stage.gateway.start()
    await asyncio.to_thread(stage.gateway.wait_ready)


def leaves(after: int) -> Harm:
    """Every caller leaves behind the same event of its stream."""

    async def run(stage: Stage) -> None:
        wishes = [
            Wish(stage.dice.randrange(1, 5000), 9, True, chunks=4, gap_ms=10, leave_after=after) for _ in range(6)
        ]
        await _traffic(stage, wishes)

    return run


async def leave_at_once(stage: Stage) -> None:
    """Callers that are gone before there is anything to hear, streaming or not."""
    dice = stage.dice
    wishes = [Wish(dice.randrange(1, 5000), 9, dice.random() < 0.5, gap_ms=30, leave_at_once=True) for _ in range(6)]
    await _traffic(stage, wishes)


def cut(after: int) -> Harm:
    """The provider's connection breaks behind the same event of every other stream: with more than that the breaker opens."""

    async def run(stage: Stage) -> None:
        places = (after, None) * 4
        await _traffic(
            stage, [Wish(stage.dice.randrange(1, 5000), 9, True, chunks=4, gap_ms=5, cut=each) for each in places]
        )

    return run


async def troubles(stage: Stage) -> None:
    """The provider falls silent, says that it failed, or refuses: before its first event and after it, streams and not."""
    says = ("status=400", "stall=2", "error=2", "error=0", "status=500")
    wishes = [Wish(stage.dice.randrange(1, 5000), 9, True, chunks=4, gap_ms=5, trouble=each) for each in says]
    wishes.append(Wish(stage.dice.randrange(1, 5000), 9, False, trouble="status=500"))
    for each in wishes:  # one after the other, between answers, so that the breaker lets all of them through
        await _served(stage)
        await stage.callers.ask(each)


def freeze_database(database: Database) -> Harm:
    async def run(stage: Stage) -> None:
        async def harm() -> None:
            await _a_moment(stage)
            database.freeze()
            await asyncio.sleep(0.4)
            database.thaw()

        await _traffic(stage, _with(stage), harm)

    return run


def crash_database(database: Database) -> Harm:
    async def run(stage: Stage) -> None:
        async def harm() -> None:
            await _a_moment(stage)
            await asyncio.to_thread(database.crash)
            await asyncio.to_thread(database.start)

        await _traffic(stage, _with(stage), harm)

    return run


def kill_while_database_is_away(database: Database) -> Harm:
    async def run(stage: Stage) -> None:
        async def harm() -> None:
            await asyncio.to_thread(database.crash)
            await _a_moment(stage)
            stage.gateway.kill()

        await _traffic(stage, _with(stage), harm)
        await asyncio.to_thread(database.start)
        stage.gateway.start()
        await asyncio.to_thread(stage.gateway.wait_ready)

    return run


async def freeze_limits(stage: Stage) -> None:
    async def harm() -> None:
        assert stage.valkey is not None
        await _a_moment(stage)
        stage.valkey.freeze()
        await asyncio.sleep(0.3)
        stage.valkey.thaw()

    await _traffic(stage, _with(stage), harm)


async def wipe_limits(stage: Stage) -> None:
    async def harm() -> None:
        assert stage.valkey is not None
        await _a_moment(stage)
        await asyncio.to_thread(stage.valkey.wipe)

    await _traffic(stage, _with(stage), harm)


async def clock_back(stage: Stage) -> None:
    """The clock is an hour behind from the middle of the traffic on, and right again at its end."""

    async def harm() -> None:
        await _a_moment(stage)
        stage.gateway.set_clock_back(3600)

    try:
        await _traffic(stage, _with(stage), harm)
        await _traffic(stage, _with(stage)[:4])
    finally:
        stage.gateway.set_clock_back(0)


async def full_disk(stage: Stage) -> None:
    """Only where the stage's folder is a small disk of its own: the last byte is taken until a request is refused, then given
    back."""
    filler = stage.home / "filler"

    async def harm() -> None:
        await asyncio.sleep(0.05)
        with filler.open("wb", buffering=0) as file:
            left = shutil.disk_usage(stage.home).free
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, left - (64 << 10)))
            with contextlib.suppress(OSError):
                file.seek(0, os.SEEK_END)
                while file.write(bytes(4096)):
                    pass

    tags = ",".join(f"filler{at}={'x' * 200}" for at in range(8))
    wishes = [Wish(stage.dice.randrange(1, 5000), 9, True, gap_ms=5, tags=tags) for _ in range(60)]
    before = len(stage.callers.heard)
    try:
        await _traffic(stage, wishes, harm)
        for _ in range(FULL_ROUNDS):
            if any(heard.status == 503 for heard in stage.callers.heard[before:]):
                return
            await _traffic(stage, wishes, served=False)
        raise AssertionError("a full disk refuses no request")
    finally:
        filler.unlink(missing_ok=True)
