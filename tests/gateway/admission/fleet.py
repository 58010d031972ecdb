"""Whole gateway processes that share one hard budget, and a thousand callers at once who want more than there is.

A request costs exactly what it reserves (input is free, the provider makes as much output as was allowed), so a budget has room
for a known number of them and not one more, however they are spread over the processes and whatever happens to the store.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from billing.money import NANO, format_scaled, parse_scaled
from tests.faults.stage import SINCE, GatewayProcess, Provider, get
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.metering.books import BooksDatabase

OUTPUT: Final = 500
COST_NANO: Final = OUTPUT * 420
"""Of one request, in the team's currency."""
DEADLINE_S: Final = 90.0

Harm = Callable[[ValkeyServer, "Run"], Awaitable[None]]


@dataclass
class Run:
    """One scenario's figures. `statuses` are those of the burst; `later` of what was asked afterwards until nothing fitted."""

    name: str
    processes: int
    requests: int
    room: int
    limit_nano: int
    statuses: Counter[int] = field(default_factory=Counter)
    later: Counter[int] = field(default_factory=Counter)
    burst_s: float = 0.0
    slowest_s: float = 0.0
    spent_nano: int = 0
    reserved_nano: int = -1
    rows: int = 0
    rows_nano: int = 0

    @property
    def admitted(self) -> int:
        return self.statuses[200] + self.later[200]

    def wrong(self) -> list[str]:
        """What of the promise does not hold."""
        found = []
        if self.admitted != self.room:
            found.append(f"{self.admitted} were admitted where {self.room} have room")
        if not self.spent_nano == self.rows_nano == self.admitted * COST_NANO <= self.limit_nano:
            found.append(
                f"{self.spent_nano} nano are spent, {self.rows_nano} in {self.rows} rows, of {self.limit_nano}"
            )
        if self.reserved_nano != 0:
            found.append(f"{self.reserved_nano} nano are reserved still")
        strange = {*self.statuses, *self.later} - {200, 402, 503}
        return [*found, *(f"answers of status {status}" for status in sorted(strange))]

    def figures(self) -> dict[str, Any]:
        kept = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("statuses", "later"):
            kept[name] = {str(status): count for status, count in sorted(kept[name].items())}
        kept |= {"burst_s": round(self.burst_s, 2), "slowest_s": round(self.slowest_s, 2)}
        return kept | {"admitted": self.admitted, "wrong": self.wrong()}


class Fleet:
    """`size` processes of `metergate serve` over one database; with `valkey`, their limits are counted there."""

    def __init__(
        self, home: Path, database_url: str, provider: Provider, size: int, valkey: ValkeyServer | None = None
    ) -> None:
        self.valkey = valkey
        self.database = BooksDatabase(database_url)
        address = f"http://127.0.0.1:{provider.port}/v1"
        config: dict[str, object] = {
            "database_url": database_url,
            "redis_url": valkey.url if valkey else None,
            "providers": {"up": {"kind": "openai", "base_url": address}},
            "models": [{"name": "m", "max_output_tokens": 4096, "routes": [{"provider": "up", "model": "up-m"}]}],
            "log_level": "warning",
        }
        self.gateways = []
        for number in range(size):
            folder = home / str(number)
            folder.mkdir(parents=True)
            pepper = folder / "key-pepper"
            pepper.write_text("ab" * 32)
            pepper.chmod(0o600)
            self.gateways.append(GatewayProcess(folder, config))

    def start(self) -> None:
        for gateway in self.gateways:
            gateway.start()
        for gateway in self.gateways:
            gateway.wait_ready()
        for kind, amount in (("input", "0"), ("output", "0.42")):
            row = {"provider": "up", "model": "up-m", "token_class": kind, "currency": "USD", "amount_per_mtok": amount}
            self.gateways[0].admin("prices", row | {"effective_from": SINCE})

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self.gateways)) as pool:
            list(pool.map(GatewayProcess.stop, self.gateways))

    async def run(self, name: str, requests: int, room: int, harm: Harm | None = None) -> Run:
        """`requests` at once on a new budget with room for `room`; then the rest of it is used up, and all comes to rest."""
        limit_nano = room * COST_NANO + COST_NANO - 1
        run = Run(name, len(self.gateways), requests, room, limit_nano)
        team, key = await asyncio.to_thread(self._open, name, limit_nano)
        harming = asyncio.ensure_future(harm(self.valkey, run)) if harm and self.valkey else None
        began = time.monotonic()
        await asyncio.gather(*(self._ask(number, key, run.statuses, run) for number in range(requests)))
        run.burst_s = time.monotonic() - began
        if harming is not None:
            await harming
        await self._use_up(key, run)
        await self._rest(team, key, run)
        return run

    def _open(self, name: str, limit_nano: int) -> tuple[str, str]:
        """A new team with a hard budget, and its key, known to every process."""
        admin = self.gateways[0].admin
        team = admin("teams", {"name": name, "settlement_currency": "USD"})["id"]
        budget = {"scope": "team", "scope_id": team, "currency": "USD", "period": "total"}
        admin("budgets", budget | {"amount": format_scaled(limit_nano, NANO)})
        key = admin("keys", {"team_id": team, "name": name})["key"]
        deadline = time.monotonic() + DEADLINE_S
        while not all(len(self._state(gateway, key).get("budgets", ())) == 1 for gateway in self.gateways):
            assert time.monotonic() < deadline, f"a process has not heard of the key: {self.gateways[0].log()}"
            time.sleep(0.05)
        return team, key

    def _state(self, gateway: GatewayProcess, key: str) -> dict[str, Any]:
        try:
            state: dict[str, Any] = get(f"http://127.0.0.1:{gateway.port}/v1/key", {"authorization": f"Bearer {key}"})
            return state
        except OSError:
            return {}

    async def _ask(self, number: int, key: str, statuses: Counter[int], run: Run) -> int:
        body = json.dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": "how much is left?"}],
                "user": f"output={OUTPUT};delay_ms={100 + number % 7 * 50}",
                "max_tokens": OUTPUT,
            }
        ).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        began = time.monotonic()
        gateway = self.gateways[number % len(self.gateways)]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        status = int(answer.split(b" ", 2)[1])
        statuses[status] += 1
        run.slowest_s = max(run.slowest_s, time.monotonic() - began)
        return status

    async def _use_up(self, key: str, run: Run) -> None:
        """Ask on until nothing is let in any more: by then everything that was not used is free again."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline, f"{run.name}: the budget is neither used up nor refused: {run}"
            answers = await asyncio.gather(
                *(self._ask(number, key, run.later, run) for number in range(3 * len(self.gateways)))
            )
            if set(answers) == {402} and await asyncio.to_thread(self._reserved, key) == 0:
                return
            await asyncio.sleep(0.1)

    def _reserved(self, key: str) -> int:
        budgets = self._state(self.gateways[0], key).get("budgets")
        return parse_scaled(budgets[0]["reserved"], NANO, "reserved") if budgets else -1

    async def _rest(self, team: str, key: str, run: Run) -> None:
        """Until the rows are there and every process says the same of the budget."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            counted = "SELECT count(*), coalesce(sum(settled_nano), 0) FROM usage WHERE team_id = "
            ((run.rows, rows_nano),) = await asyncio.to_thread(self.database.rows, f"{counted}'{team}'")
            run.rows_nano = int(rows_nano)
            states = [await asyncio.to_thread(self._state, gateway, key) for gateway in self.gateways]
            budgets = [state["budgets"][0] for state in states if state.get("budgets")]
            if len(budgets) == len(states):
                spent = {parse_scaled(each["spent"], NANO, "spent") for each in budgets}
                reserved = {parse_scaled(each["reserved"], NANO, "reserved") for each in budgets}
                run.spent_nano, run.reserved_nano = max(spent), max(reserved)
                if spent == {run.rows_nano} and run.rows >= run.admitted:
                    return
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.1)


async def _answered(run: Run, count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while run.statuses.total() < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def killed(valkey: ValkeyServer, run: Run) -> None:
    """The server dies in the middle and comes back empty."""
    await _answered(run, 20)
    await asyncio.to_thread(valkey.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(valkey.start)


async def frozen(valkey: ValkeyServer, run: Run) -> None:
    """The server hangs in the middle for a second."""
    await _answered(run, 20)
    valkey.freeze()
    await asyncio.sleep(1)
    valkey.thaw()


async def wiped(valkey: ValkeyServer, run: Run) -> None:
    """Somebody empties the server in the middle."""
    await _answered(run, 20)
    await asyncio.to_thread(valkey.wipe)
