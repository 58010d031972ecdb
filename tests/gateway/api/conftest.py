"""A gateway that listens on a real socket, with scripted providers as real processes behind it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from gateway.api import app
from gateway.api.asgi import Receive, Scope, Send
from gateway.database import upgrade
from gateway.services import Services, build_services
from gateway.settings import Settings, load_settings
from tests.gateway.metering.threaded import in_a_thread

ADMIN_KEY = "admin-key-of-the-tests"
PROVIDER_KEY = "sk-provider-AbCdEf0123456789xyzW"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me something about foxes."}]

PLAIN: dict[str, Any] = {"trust_env": False, "verify": False}
"""No proxy, and no reading of a hundred certificates for a client that speaks plain HTTP."""

CONFIG = """\
providers:
  up: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1", api_key: "env:UP_KEY", idle_timeout_s: 1.0, timeout_s: 2.0}}
  spare: {{kind: openai, base_url: "http://127.0.0.1:{spare}/v1"}}
  dead: {{kind: openai, base_url: "http://127.0.0.1:{dead}/v1"}}
  motor: {{kind: engine, base_url: "http://127.0.0.1:{motor}"}}
models:
  - {{name: m, context_window: 8192, max_output_tokens: 4096, routes: [{{provider: up, model: up-m}}]}}
  - {{name: open, routes: [{{provider: up, model: up-m}}]}}
  - {{name: two, routes: [{{provider: up, model: up-m}}, {{provider: spare, model: spare-m}}]}}
  - {{name: limping, routes: [{{provider: dead, model: x}}, {{provider: spare, model: spare-m}}]}}
  - {{name: far, routes: [{{provider: spare, model: spare-m}}]}}
  - {{name: gone, routes: [{{provider: dead, model: x}}]}}
  - {{name: engine, routes: [{{provider: motor, model: motor-m}}]}}
  - {{name: media, routes: [{{provider: up, model: up-media}}]}}
  - {{name: unpriced, routes: [{{provider: up, model: nobody-knows}}]}}
"""


class Upstream:
    """A scripted provider's process and its book."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, "-m", "tests.upstream_server", "--kind", kind]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    async def book(self) -> list[dict[str, Any]]:
        async with httpx.AsyncClient(**PLAIN) as client:
            entries: list[dict[str, Any]] = (await client.get(f"http://127.0.0.1:{self.port}/book")).json()["entries"]
            return entries

    async def clear(self) -> None:
        async with httpx.AsyncClient(**PLAIN) as client:
            await client.post(f"http://127.0.0.1:{self.port}/book/clear", content=b"")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _upstream(kind: str) -> Iterator[Upstream]:
    upstream = Upstream(kind)
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def up_process() -> Iterator[Upstream]:
    yield from _upstream("openai")


@pytest.fixture(scope="session")
def spare_process() -> Iterator[Upstream]:
    yield from _upstream("openai")


@pytest.fixture(scope="session")
def motor_process() -> Iterator[Upstream]:
    yield from _upstream("engine")


@pytest.fixture
async def up(up_process: Upstream) -> Upstream:
    await up_process.clear()
    return up_process


@pytest.fixture
async def spare(spare_process: Upstream) -> Upstream:
    await spare_process.clear()
    return spare_process


@pytest.fixture
async def motor(motor_process: Upstream) -> Upstream:
    await motor_process.clear()
    return motor_process


@pytest.fixture
def dead_port() -> Iterator[int]:
    """Nobody listens here."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def settings(
    tmp_path: Path, up: Upstream, spare: Upstream, motor: Upstream, dead_port: int, provisioned: Provisioned
) -> Settings:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(up=up.port, spare=spare.port, motor=motor.port, dead=dead_port))
    database = tmp_path / "metergate.db"
    shutil.copyfile(provisioned.database, database)
    return load_settings(config, environment(tmp_path, database))


def environment(folder: Path, database: Path) -> dict[str, str]:
    return {
        "METERGATE_HOME": str(folder / "var"),
        "METERGATE_ADMIN_KEY": ADMIN_KEY,
        "METERGATE_KEY_PEPPER": "ab" * 32,
        "METERGATE_DATABASE_URL": f"sqlite:///{database}",
        "METERGATE_REQUEST_MAX_BYTES": "200000",
        "UP_KEY": PROVIDER_KEY,
    }


async def until(ready: Callable[[], Awaitable[Any]], what: str, within_s: float = 5.0) -> Any:
    """Waits for `ready` to return something true, and returns it."""
    deadline = time.monotonic() + within_s
    while not (found := await ready()):
        assert time.monotonic() < deadline, f"still waiting for {what} after {within_s} s"
        await asyncio.sleep(0.01)
    return found


@dataclass
class Gateway:
    """A running gateway. `client` is a caller with the team's key, `operator` has the admin key."""

    services: Services
    server: uvicorn.Server
    port: int
    client: httpx.AsyncClient
    operator: httpx.AsyncClient
    key: str = ""
    team_id: str = ""
    key_id: str = ""
    serving: list[asyncio.Task[None]] = field(default_factory=list)

    def use(self, provisioned: Provisioned) -> None:
        self.team_id, self.key_id, self.key = provisioned.team_id, provisioned.key_id, provisioned.key
        self.client.headers["authorization"] = f"Bearer {provisioned.key}"

    async def admin(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.operator.post(f"/admin/v1{path}", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def chat(self, script: str = "", *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "m", "messages": MESSAGES, "user": script, **fields}
        return await self.client.post(CHAT, json=body, headers=headers)

    async def stream(self, script: str = "", **fields: Any) -> tuple[httpx.Response, bytes]:
        answer = await self.chat(script, stream=True, **fields)
        return answer, answer.content

    async def row(self, answer: httpx.Response | str) -> dict[str, Any]:
        """The request's row, as soon as the recorder has written it."""
        request_id = answer if isinstance(answer, str) else answer.headers["x-request-id"]

        async def written() -> dict[str, Any] | None:
            found = await self.operator.get(f"/admin/v1/usage/requests/{request_id}")
            return found.json() if found.status_code == 200 else None

        row: dict[str, Any] = await until(written, f"the row of {request_id}")
        return row

    async def only_row(self) -> dict[str, Any]:
        async def written() -> dict[str, Any] | None:
            rows = (await self.operator.get("/admin/v1/usage/requests")).json()["data"]
            assert len(rows) <= 1
            return rows[0] if rows else None

        row: dict[str, Any] = await until(written, "the one row")
        return await self.row(row["id"])

    async def settled(self) -> None:
        """Every request is over and everything reserved is given back."""

        async def quiet() -> bool:
            return not self.services.watch.running and self.services.journal.in_flight == 0

        await until(quiet, "every request to end")


@dataclass(frozen=True)
class Provisioned:
    """A database with a team that settles in CNY at 1:1, a key, and prices for the scripted models."""

    database: Path
    team_id: str
    key_id: str
    key: str


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Provisioned:
    folder = tmp_path_factory.mktemp("provisioned")
    with ThreadPoolExecutor(1) as thread:  # a loop of its own, whatever loop the first test runs in
        return thread.submit(lambda: asyncio.run(_provision(folder))).result()


async def _provision(folder: Path) -> Provisioned:
    database, config = folder / "metergate.db", folder / "gateway.yaml"
    config.write_text(CONFIG.format(up=9, spare=9, motor=9, dead=9))
    await upgrade(f"sqlite:///{database}")
    since = "2026-01-01T00:00:00Z"
    async with running(load_settings(config, environment(folder, database))) as gateway:
        team = await gateway.admin("/teams", {"name": "search", "settlement_currency": "CNY"})
        terms = {"team_id": team["id"], "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY"}
        await gateway.admin("/terms", {**terms, "effective_from": since})
        rate = {"base": "USD", "quote": "CNY", "kind": "policy", "rate": "7.3", "source": "test"}
        await gateway.admin("/rates", {**rate, "effective_from": since})
        for provider, model in (("up", "up-m"), ("spare", "spare-m"), ("motor", "motor-m")):
            for token_class, amount in (("input", "0.28"), ("cache_read", "0.028"), ("output", "0.42")):
                price = {"provider": provider, "model": model, "token_class": token_class, "currency": "USD"}
                await gateway.admin("/prices", {**price, "amount_per_mtok": amount, "effective_from": since})
        media = {"input": "0.28", "output": "0.42", "audio_input": "1", "image_output": "40"}
        for token_class, amount in media.items():
            price = {"provider": "up", "model": "up-media", "token_class": token_class, "currency": "USD"}
            await gateway.admin("/prices", {**price, "amount_per_mtok": amount, "effective_from": since})
        key = await gateway.admin("/keys", {"team_id": team["id"], "name": "tests"})
    return Provisioned(database, team["id"], key["id"], key["key"])


_SERVICES = ContextVar[Services]("services")


class _Asked:
    """Stands for the services of the gateway that is asked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_SERVICES.get(), name)


_operators_over = app._operators


@cache
def _operators() -> app.Endpoint:
    """What operators ask, once for all gateways: putting its routes together takes longer than most tests."""
    return _operators_over(cast(Services, _Asked()))


def _operators_of(services: Services) -> app.Endpoint:
    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        _SERVICES.set(services)
        await _operators()(scope, receive, send)

    return dispatch


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Gateway]:
    services = await build_services(settings, in_a_thread)
    await services.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "_operators", _operators_of)
        application = app.create_app(services)
    config = uvicorn.Config(
        application, port=0, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    port = listener.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    operator = httpx.AsyncClient(base_url=base, headers={"authorization": f"Bearer {ADMIN_KEY}"}, **PLAIN)
    client = httpx.AsyncClient(base_url=base, timeout=20, **PLAIN)
    gateway = Gateway(services, server, port, client, operator, serving=[serving])

    async def started() -> bool:
        return server.started

    try:
        await until(started, "the server to start")
        yield gateway
    finally:
        await client.aclose()
        await operator.aclose()
        server.should_exit = True
        await serving
        await services.stop()
        listener.close()


@pytest.fixture
async def gateway(settings: Settings, provisioned: Provisioned) -> AsyncIterator[Gateway]:
    async with running(settings) as gateway:
        gateway.use(provisioned)
        yield gateway
