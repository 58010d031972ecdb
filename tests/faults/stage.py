"""A stage for fault runs: a scripted provider with its own book, a database, a limit store, and a gateway that can be killed.

Everything is a real process. The gateway keeps its port over its deaths, so that callers see what a load balancer would see.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.e2e.product import compiled_kernels
from tests.faults.callers import Callers
from tests.faults.processes import descendants
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.metering.books import BooksDatabase
from tests.gateway.metering.conftest import eventually

ROOT = Path(__file__).parents[2]
ADMIN_KEY = "admin-key-of-the-fault-harness"
SINCE = "2020-01-01T00:00:00Z"
START_S = 90.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get(url: str, headers: dict[str, str] | None = None, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)


class Provider:
    """The scripted upstream; its book is the witness of what was produced."""

    def __init__(self, kind: str = "openai") -> None:
        command = [sys.executable, "-m", "tests.upstream_server", "--kind", kind]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def book(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = get(f"http://127.0.0.1:{self.port}/book")["entries"]
        return entries

    def clear(self) -> None:
        get(f"http://127.0.0.1:{self.port}/book/clear", body={})

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class GatewayProcess:
    """`metergate serve`, or a gateway with a bug planted into it (`planted`), in a folder of its own."""

    def __init__(
        self,
        home: Path,
        config: dict[str, object],
        planted: str = "",
        environ: Mapping[str, str] = MappingProxyType({}),
        release: Path = ROOT,
    ) -> None:
        """`release` is the source tree that it runs from."""
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.release = release
        self.port = free_port()
        self._config = home / "metergate.yaml"
        self.configure(config)
        self._clock = home / "clock"
        self._planted = planted
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, config: dict[str, object]) -> None:
        """What its next process reads."""
        self._config.write_text(json.dumps(config))

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("METERGATE_")}
        environment |= {
            "METERGATE_HOME": str(self.home),
            "METERGATE_ADMIN_KEY": ADMIN_KEY,
            "FAULT_CLOCK": str(self._clock),
            "FAULT_PLANTED": self._planted,
            **compiled_kernels(),
            **self._environ,
        }
        command = [sys.executable, "-m", "tests.faults.gateway", "serve", "--config", str(self._config)]
        with (self.home / "gateway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port)], cwd=self.release, env=environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def wait_ready(self) -> None:
        process = self._process
        assert process is not None

        def ready() -> bool:
            assert process.poll() is None, f"the gateway ended: {self.log()}"
            try:
                get(f"http://127.0.0.1:{self.port}/health/ready")
            except (OSError, ValueError):
                return False
            return True

        eventually(ready, f"the gateway is ready: {self.log()}", START_S)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def recorders(self) -> list[int]:
        """The process that ships the journal; none for the moment between its death and the next one's start."""
        return descendants(self.pid, "recorder")

    def log(self) -> str:
        return (self.home / "gateway.log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def kill_group(self) -> None:
        """Whatever still runs."""
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def stop(self) -> None:
        """SIGTERM: drain, ship, end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)

    def set_clock_back(self, seconds: float) -> None:
        """From now on the process sees the time of so many seconds ago; 0 puts it right."""
        self._clock.write_text(str(seconds))

    def admin(self, path: str, body: object = None) -> Any:
        return get(f"http://127.0.0.1:{self.port}/admin/v1/{path}", {"authorization": f"Bearer {ADMIN_KEY}"}, body)


class Stage:
    """One gateway over `database_url`; with `valkey`, limits are counted there."""

    def __init__(
        self,
        home: Path,
        database_url: str,
        provider: Provider,
        valkey: ValkeyServer | None = None,
        planted: str = "",
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.database = BooksDatabase(database_url)
        self.provider = provider
        self.valkey = valkey
        self.proven: set[str] = set()
        """Rows that the law has held for, and that no later run looks at."""
        self.dice = random.Random(os.environ.get("FAULT_SEED") or time.time_ns())
        route = {"provider": "up", "model": "up-m"}
        self.config: dict[str, object] = {
            "database_url": database_url,
            "redis_url": valkey.url if valkey else None,
            "providers": {
                "up": {
                    "kind": "openai", "base_url": f"http://127.0.0.1:{provider.port}/v1", "timeout_s": 5,
                    "idle_timeout_s": 3,
                }
            },
            "models": [{"name": "m", "context_window": 100_000, "max_output_tokens": 4096, "routes": [route]}],
            "journal": {"max_bytes": 2 << 20},
            "log_level": "warning",
        }  # fmt: skip
        self.gateway = GatewayProcess(home, self.config, planted, environ)
        self.callers = Callers(self.gateway.port, "")

    def open(self) -> None:
        """Starts the gateway; the first time, a team that settles in CNY, its prices, its key and its budget as well."""
        self.gateway.start()
        self.gateway.wait_ready()
        if self.callers.key:
            return
        admin = self.gateway.admin
        for kind, amount in (("input", "0.28"), ("output", "0.42")):
            row = {"provider": "up", "model": "up-m", "token_class": kind, "currency": "USD"}
            admin("prices", row | {"amount_per_mtok": amount, "effective_from": SINCE})
        team = admin("teams", {"name": "faults", "settlement_currency": "CNY"})["id"]
        terms = {"team_id": team, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY"}
        admin("terms", terms | {"effective_from": SINCE})
        budget = {"scope": "team", "scope_id": team, "amount": "1000", "currency": "CNY", "period": "total"}
        admin("budgets", budget | {"timezone": "UTC", "hard": True})
        self.callers.key = admin("keys", {"team_id": team, "name": "faults"})["key"]

    def budget(self) -> dict[str, Any] | None:
        """What the limit store says of the budget; None while it cannot say."""
        try:
            answer = get(
                f"http://127.0.0.1:{self.gateway.port}/v1/key", {"authorization": f"Bearer {self.callers.key}"}
            )
        except (OSError, ValueError, urllib.error.HTTPError):
            return None
        (budget,) = answer["budgets"]
        return dict(budget)

    def kill_everything(self) -> None:
        self.gateway.kill_group()
