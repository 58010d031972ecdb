"""Two attempts at once: who wins, what becomes of the other, and who pays for it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.attempt import Attempt
from gateway.api.caller import LEFT, Caller, Interrupted
from gateway.api.hedge import race
from gateway.routing.pace import ENOUGH
from gateway.settings import Settings, load_settings
from gateway.upstream.base import Failure
from gateway.upstream.errors import ConnectionLost
from tests.gateway.api.conftest import Gateway, Provisioned, Upstream, environment, running, until

# ---- the law, step by step ----


class Call:
    """An attempt whose provider answers when told to: `ok`, `refused` (a 500) or `cut`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = self.cancelled = False
        self.status = 0
        adapter = SimpleNamespace(failure=lambda *_: Failure(cast(Any, None), True, True, None, "refused"))
        provider = SimpleNamespace(name=name, transport=self, adapter=adapter, settings=SimpleNamespace(timeout_s=60.0))
        self.route = SimpleNamespace(provider=provider)
        self.outgoing = SimpleNamespace(url="", headers={}, body=b"")
        self.call = SimpleNamespace(streamed=True)
        self.transport: Any = self

    async def post(self, *_: object) -> Call:
        try:
            said = await asyncio.shield(self.said)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if said == "cut":
            raise ConnectionLost("cut")
        self.status = 200 if said == "ok" else 500
        return self

    def header(self, name: str) -> None:
        return None

    async def read_chunk(self) -> bytes:
        return self.name.encode()

    async def aclose(self) -> None:
        self.closed = True


class Waiting:
    """A caller on the test's clock: `within_s` is over when the test says so."""

    def __init__(self) -> None:
        self.late = asyncio.Event()
        self.left = asyncio.Event()

    async def wait_for(self, calls: Iterable[asyncio.Task[Any]], limit_s: float, within_s: float | None = None) -> None:
        ends = [asyncio.ensure_future(self.left.wait())]
        if within_s is not None:
            ends.append(asyncio.ensure_future(self.late.wait()))
        await asyncio.wait({*calls, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if self.left.is_set():
            raise Interrupted(LEFT)


STEPS = st.permutations(["late", "first", "second"]).flatmap(
    lambda order: st.tuples(
        st.just(order), st.sampled_from(["ok", "refused", "cut"]), st.sampled_from(["ok", "refused", "cut"])
    )
)


@given(STEPS, st.booleans(), st.sampled_from([None, 0, 1, 2]))
async def test_who_begins_first_wins_and_the_other_is_told(
    steps: tuple[list[str], str, str], there_is_another: bool, leaves_after: int | None
) -> None:
    order, first_says, second_says = steps
    first, second, waiting = Call("first"), Call("second"), Waiting()
    opened: list[str] = ["first"]
    lost: dict[str, Failure | None] = {}

    async def another() -> Attempt | None:
        if not there_is_another:
            return None
        opened.append("second")
        return cast(Attempt, second)

    def lose(attempt: Attempt, failure: Failure | None) -> None:
        assert attempt.name not in lost  # type: ignore[attr-defined]
        lost[attempt.name] = failure  # type: ignore[attr-defined]

    running_ = asyncio.ensure_future(race(cast(Caller, waiting), cast(Attempt, first), 1.0, another, lose))
    ended: list[tuple[str, str]] = []
    left = False
    for number, step in enumerate(order):
        if leaves_after == number and not running_.done():
            left = True
            waiting.left.set()
        elif step == "late":
            waiting.late.set()
        else:
            call, says = (first, first_says) if step == "first" else (second, second_says)
            if not running_.done():
                ended.append((step, says))
            call.said.set_result(says)
        for _ in range(12):
            await asyncio.sleep(0)
    for call in (first, second):
        if not call.said.done():
            call.said.set_result("ok")
    waiting.late.set()
    winner = cast(Any, await running_)
    assert {winner.name, *lost} == set(opened), "each is either the winner or heard of as lost"
    if left:
        assert winner is first and isinstance(winner.transport.error, Interrupted)
        return
    good = [name for name, says in ended if says == "ok" and name in opened]
    if len(opened) == 1:
        assert winner is first
    elif good and "late" in order[: order.index(good[0]) + 1]:
        assert winner.transport.good
    if winner.transport.good:
        assert await winner.transport.read_chunk() == winner.name.encode()
        assert not winner.closed
    for name, failure in lost.items():
        loser = first if name == "first" else second
        says = first_says if name == "first" else second_says
        assert loser.cancelled or loser.closed or says == "cut"
        assert (failure is None) == loser.cancelled or says == "ok"


# ---- over real sockets ----

CONFIG = """\
providers:
  up: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1"}}
  spare: {{kind: openai, base_url: "http://127.0.0.1:{spare}/v1"}}
  motor: {{kind: engine, base_url: "http://127.0.0.1:{motor}"}}
models:
  - {{name: m, hedge: true, routes: [{{provider: up, model: up-m}}, {{provider: spare, model: spare-m}}]}}
  - {{name: engine, hedge: true, routes: [{{provider: motor, model: motor-m}}, {{provider: spare, model: spare-m}}]}}
"""


@pytest.fixture
def settings(tmp_path: Path, up: Upstream, spare: Upstream, motor: Upstream, provisioned: Provisioned) -> Settings:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(up=up.port, spare=spare.port, motor=motor.port))
    database = tmp_path / "metergate.db"
    shutil.copyfile(provisioned.database, database)
    return load_settings(config, environment(tmp_path, database))


@pytest.fixture
async def gateway(settings: Settings, provisioned: Provisioned) -> AsyncIterator[Gateway]:
    async with running(settings) as gateway:
        gateway.use(provisioned)
        yield gateway


def known(gateway: Gateway, model: str, took_s: float = 0.05) -> None:
    """As if the first route had always begun to answer after `took_s`."""
    for pace in gateway.services.router.find(model).routes[0].paces or ():
        for second in range(ENOUGH):
            pace.answered(float(second), took_s)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_first_attempt_is_outrun_cancelled_and_kept_as_cost(
    gateway: Gateway, up: Upstream, stream: bool
) -> None:
    known(gateway, "m")
    answer = await gateway.chat("on=up-m;delay_ms=60000;output=7", stream=stream)
    assert answer.status_code == 200
    assert (answer.headers["x-metergate-provider"], answer.headers["x-metergate-attempts"]) == ("spare", "2")
    row = await gateway.row(answer)
    first, second = row["attempts"]
    assert (first["provider"], first["status"], first["error"]) == ("up", "cancelled", "another attempt was quicker")
    assert (second["provider"], second["status"]) == ("spare", "completed")
    assert row["provider"] == "spare" and first["cost"]["amount"] != "0"
    assert row["settled"]["amount"] == second["cost"]["amount"], "the caller pays for the one that answered"

    async def left() -> bool:
        return [entry["ended"] for entry in await up.book()] in (["left"], ["running"])

    await until(left, "the provider to be told")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_quick_first_attempt_stays_alone(gateway: Gateway, spare: Upstream, stream: bool) -> None:
    known(gateway, "m", took_s=30.0)
    answer = await gateway.chat("delay_ms=20", stream=stream)
    assert answer.headers["x-metergate-attempts"] == "1" and await spare.book() == []
    assert "cancelled" not in {attempt["status"] for attempt in (await gateway.row(answer))["attempts"]}


async def test_a_first_attempt_that_begins_before_the_second_wins(gateway: Gateway, spare: Upstream) -> None:
    known(gateway, "m")
    answer = await gateway.chat("on=up-m;delay_ms=300", stream=True)
    body = {"spare": "word0", "up": "word0"}[answer.headers["x-metergate-provider"]]
    assert body.encode() in answer.content
    slow = await gateway.chat("on=spare-m;delay_ms=60000", stream=True)
    assert slow.status_code == 200 and slow.headers["x-metergate-provider"] == "up"


async def test_an_engine_that_is_broken_off_says_what_it_used(gateway: Gateway, spare: Upstream) -> None:
    known(gateway, "engine")
    script = "on=motor-m;delay_ms=60000;prompt=100"
    answer = await gateway.chat(script, model="engine", stream=True)
    assert answer.headers["x-metergate-provider"] == "spare"
    assert (await gateway.row(answer))["attempts"][0]["status"] == "cancelled"


async def test_without_a_retry_to_spend_and_where_the_caller_forbids_it_nothing_is_hedged(
    gateway: Gateway, spare: Upstream
) -> None:
    known(gateway, "m")
    quick = {"x-metergate-no-retry": "1"}
    answer = await gateway.chat("on=up-m;delay_ms=200", headers=quick)
    assert answer.headers["x-metergate-attempts"] == "1" and await spare.book() == []
    while gateway.services.router.find("m").retries.take("somebody") or gateway.services.router.find("m").retries.take(
        "e"
    ):
        pass
    assert (await gateway.chat("on=up-m;delay_ms=200")).headers["x-metergate-attempts"] == "1"


async def test_a_caller_that_leaves_both_attempts_is_billed_once(gateway: Gateway) -> None:
    known(gateway, "m")
    asking = asyncio.create_task(gateway.chat("delay_ms=60000"))

    async def both() -> bool:
        return all(route.in_flight == 1 for route in gateway.services.router.find("m").routes)

    await until(both, "two attempts at once", within_s=20)
    asking.cancel()
    await asyncio.wait([asking])
    row = await gateway.only_row()
    assert row["status"] == "cancelled" and {attempt["status"] for attempt in row["attempts"]} == {"cancelled"}
    assert len(row["attempts"]) == 2
    await gateway.settled()
    assert all(route.in_flight == 0 for route in gateway.services.router.find("m").routes)
