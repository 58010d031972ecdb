"""Several gateways over one PostgreSQL and one Valkey, behind a real HAProxy, as a rolling upgrade and a lost node meet them."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.faults.callers import Heard, Wish, some_wishes
from tests.faults.gateway_law import violations
from tests.faults.stage import GatewayProcess, Provider, Stage, free_port, get
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.metering.conftest import eventually

PEPPER = "one-pepper-for-every-replica-of-the-fleet"
UNPLUGGED_S = 0.5
"""Between a replica's leaving the balancer and its SIGTERM: what a preStop hook gives every proxy to hear of it."""


class HaProxy:
    """Sends callers to the replicas that say they are ready; what could not even be connected goes to another one."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.port = free_port()
        self._socket = folder / "haproxy.sock"
        servers = "\n".join(f"    server g{at} 127.0.0.1:{port} check" for at, port in enumerate(ports))
        (folder / "haproxy.cfg").write_text(
            f"global\n    stats socket {self._socket} level admin\n"
            "defaults\n    mode http\n    timeout connect 2s\n    timeout client 60s\n    timeout server 60s\n"
            "    timeout check 2s\n    retries 4\n    option redispatch 1\n    retry-on conn-failure\n"
            f"frontend callers\n    bind 127.0.0.1:{self.port}\n    default_backend gateways\n"
            "backend gateways\n    balance roundrobin\n    http-reuse never\n    option httpchk GET /health/ready\n"
            f"    default-server inter 200ms fall 2 rise 1 init-addr none\n{servers}\n"
        )
        program = shutil.which("haproxy")
        assert program is not None
        with (folder / "haproxy.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "-db", "-f", str(folder / "haproxy.cfg")], stdout=log, stderr=log
            )

    def unplug(self, replica: int) -> None:
        self._tell(f"set server gateways/g{replica} state drain")

    def plug(self, replica: int) -> None:
        self._tell(f"set server gateways/g{replica} state ready")

    def up(self) -> int:
        """How many replicas it sends callers to."""
        try:
            table = self._tell("show stat").splitlines()
        except OSError:
            return 0
        return sum(row.split(",")[17].startswith("UP") for row in table if row.startswith("gateways,g"))

    def _tell(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(5)
            line.connect(str(self._socket))
            line.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@dataclass(frozen=True, slots=True)
class Served:
    """One caller's time, by the monotonic clock, and what it heard."""

    begun_s: float
    ended_s: float
    heard: Heard


class Death(NamedTuple):
    """From SIGKILL until the process and its sockets were gone, by the monotonic clock."""

    begun_s: float
    ended_s: float


class Fleet(Stage):
    """`replicas[0]` is the stage's own gateway. The callers go through the balancer."""

    def __init__(self, home: Path, database_url: str, provider: Provider, valkey: ValkeyServer, size: int) -> None:
        environ = {"METERGATE_KEY_PEPPER": PEPPER}
        super().__init__(home / "0", database_url, provider, valkey, environ=environ)
        self.replicas = [
            self.gateway,
            *(GatewayProcess(home / str(at), self.config, environ=environ) for at in range(1, size)),
        ]
        self.served: list[Served] = []
        self.balancer: HaProxy

    def open(self) -> None:
        super().open()
        for replica in self.replicas[1:]:
            replica.start()
        for replica in self.replicas[1:]:
            replica.wait_ready()
        self.balancer = HaProxy(self.home, [replica.port for replica in self.replicas])
        self.callers.port = self.balancer.port
        eventually(lambda: self.balancer.up() == len(self.replicas), "the balancer sees every replica", 30.0)

    async def traffic(self, abreast: int, until: Callable[[], bool], pause_s: float = 0.0) -> None:
        """`abreast` callers, each asking again and again: whole answers and streams that last a moment, nobody leaving.

        Each rests for `pause_s` on average between an answer and its next question.
        """

        async def caller() -> None:
            while not until():
                (drawn,) = some_wishes(self.dice, 1)
                wish = Wish(drawn.prompt, drawn.output, drawn.streamed, chunks=5, gap_ms=self.dice.choice((0, 10, 40)))
                begun_s = time.monotonic()
                heard = await self.callers.ask(wish, 60.0)
                self.served.append(Served(begun_s, time.monotonic(), heard))
                await asyncio.sleep(self.dice.uniform(0, 2 * pause_s))

        await asyncio.gather(*(caller() for _ in range(abreast)))

    def restart(self, at: int) -> None:
        """As a rolling upgrade does: out of the balancer, SIGTERM, drained, shipped, started again, back."""
        replica = self.replicas[at]
        self.balancer.unplug(at)
        time.sleep(UNPLUGGED_S)
        replica.stop()
        replica.start()
        replica.wait_ready()
        self.balancer.plug(at)
        eventually(lambda: self.balancer.up() == len(self.replicas), f"replica {at} is back", 30.0)

    def kill(self, at: int) -> Death:
        """SIGKILL, and a new process over the same volume."""
        replica = self.replicas[at]
        begun_s = time.monotonic()
        replica.kill()
        death = Death(begun_s, time.monotonic())
        replica.start()
        replica.wait_ready()
        eventually(lambda: self.balancer.up() == len(self.replicas), f"replica {at} is back", 30.0)
        return death

    def failed(self, deaths: list[Death]) -> list[Served]:
        """Callers without a whole answer who were not under way when a replica died."""
        return [
            each
            for each in self.served
            if not each.heard.complete
            and not any(each.begun_s <= death.ended_s and death.begun_s <= each.ended_s for death in deaths)
        ]

    def revoked_within_s(self) -> float:
        """How long a revoked key was still served by some replica."""
        team = self.gateway.admin("teams")["data"][0]["id"]
        made = self.gateway.admin("keys", {"team_id": team, "name": "to be revoked"})

        def served(replica: GatewayProcess) -> bool:
            try:
                get(f"http://127.0.0.1:{replica.port}/v1/key", {"authorization": f"Bearer {made['key']}"})
            except OSError:
                return False
            return True

        eventually(lambda: all(map(served, self.replicas)), "every replica knows the key", 30.0)
        self.gateway.admin(f"keys/{made['id']}/revoke", {})
        begun_s = time.monotonic()
        eventually(lambda: not any(map(served, self.replicas)), "no replica serves it any more", 30.0)
        return time.monotonic() - begun_s

    def at_rest(self, within_s: float) -> list[str]:
        """What the law still objects to when everything has had its time."""
        until_s = time.monotonic() + within_s
        while (found := violations(self)) and time.monotonic() < until_s:
            time.sleep(0.2)
        return found

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()
        self.balancer.stop()

    def kill_everything(self) -> None:
        for replica in self.replicas:
            replica.kill_group()
        if hasattr(self, "balancer"):
            self.balancer.stop()


async def rolling(
    fleet: Fleet, *, abreast: int, rounds: int, deaths: int, pause_s: float = 0.0, settle_s: float = 0.0
) -> list[Death]:
    """Under traffic: each replica restarted in turn, `rounds` times, and `deaths` of them killed in between.

    Callers rest for `pause_s` between questions; each replica that is back serves for `settle_s` before the next one goes.
    """
    over = False
    traffic = asyncio.create_task(fleet.traffic(abreast, lambda: over, pause_s))
    died: list[Death] = []
    victims = itertools.cycle(reversed(range(len(fleet.replicas))))
    try:
        for at in range(rounds * len(fleet.replicas)):
            await asyncio.to_thread(fleet.restart, at % len(fleet.replicas))
            if len(died) < deaths:
                died.append(await asyncio.to_thread(fleet.kill, next(victims)))
            await asyncio.sleep(settle_s)
    finally:
        over = True
        await traffic
    return died
