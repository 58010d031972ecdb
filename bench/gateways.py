"""The gateways of one side-by-side run, each started the way its own documentation recommends for speed.

Peers live in environments of their own under `bench/.envs` (or `BENCH_ENVS`); `python -m bench.gateways install` makes them.
A peer that is not installed is left out of a run, and the run says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import make_url, text

from bench.load import Target
from bench.processes import Process, free_port
from billing.database import open_database
from gateway.compiling import compile_path
from gateway.database import upgrade
from tests.faults.postgresql import OwnPostgresql
from tests.fixtures.valkey import ValkeyServer

ROOT = Path(__file__).resolve().parent.parent
ENVS = Path(os.environ.get("BENCH_ENVS", ROOT / "bench" / ".envs"))
T = TypeVar("T")
ADMIN_KEY = "bench-admin-key-0123456789"
FERROGW_KEY = "fgw_benchbenchbenchbench"


@dataclass(slots=True)
class Gateway:
    """A started server, where its callers go, and how many usage rows it has written (None: it writes none)."""

    process: Process
    target: Target
    rows: Callable[[], int | None] = lambda: None
    close: Callable[[], None] = lambda: None
    """Ends what was started for this gateway alone: its database, its limit store."""

    def stop(self) -> None:
        self.process.stop()
        self.close()


def bare_forward(upstream: int, folder: Path) -> Gateway:
    """The floor: a raw ASGI route and pyreqwest, no keys, no limits, no books."""
    port = free_port()
    command = [sys.executable, "-m", "bench.forward", "--port", str(port), "--upstream", str(upstream)]
    process = Process("forward", command, env={"PYTHONPATH": str(ROOT)}, folder=folder, port=port)
    return Gateway(process, Target("forward", port, "bench-model"))


def metergate(upstream: int, folder: Path) -> Gateway:
    """Everything on: a key with limits, a hard budget, the journal, the recorder, metrics. SQLite and memory limits. Compiled."""
    return _metergate("metergate", upstream, folder)


def metergate_interpreted(upstream: int, folder: Path) -> Gateway:
    """The same without `metergate compile`."""
    return _metergate("metergate-interpreted", upstream, folder, compiled=False)


def metergate_postgresql(upstream: int, folder: Path) -> Gateway:
    """The same over PostgreSQL and Valkey, whose own CPU is not counted."""
    return _with_stores("metergate-pg", upstream, folder, workers=1)


def metergate_workers(upstream: int, folder: Path) -> Gateway:
    """The same with two workers."""
    return _with_stores("metergate-pg-2", upstream, folder, workers=2)


def _with_stores(name: str, upstream: int, folder: Path, *, workers: int) -> Gateway:
    database = OwnPostgresql(folder / f"{name}-postgresql")
    valkey_folder = folder / f"{name}-valkey"
    valkey_folder.mkdir()
    valkey = ValkeyServer(valkey_folder)
    valkey.start()
    _in_a_loop_of_its_own(upgrade(database.url))
    stores = {"database_url": database.url, "redis_url": valkey.url}
    gateway = _metergate(name, upstream, folder, stores, workers)

    def close() -> None:
        valkey.stop()
        database.remove()

    gateway.close = close
    return gateway


def serve_command(
    home: Path, port: int, *, upstream: int, stores: Mapping[str, str] = MappingProxyType({}), workers: int = 1
) -> tuple[list[str], dict[str, str]]:
    """`metergate serve` in `home` before one provider, and its environment."""
    provider = {"kind": "openai", "base_url": f"http://127.0.0.1:{upstream}/v1", "api_key": "env:BENCH_UPSTREAM_KEY"}
    model = {
        "name": "bench-model",
        "context_window": 131072,
        "max_output_tokens": 8192,
        "routes": [{"provider": "bench", "model": "bench-model"}],
    }
    config = home / "metergate.yaml"
    config.write_text(json.dumps({"providers": {"bench": provider}, "models": [model], **stores}))
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(config), "--port", str(port)]
    command += ["--workers", str(workers)]
    environment = {
        "METERGATE_HOME": str(home),
        "METERGATE_ADMIN_KEY": ADMIN_KEY,
        "BENCH_UPSTREAM_KEY": "sk-bench-upstream",
        "PYTHONPATH": str(ROOT),
    }
    return command, environment


def _metergate(
    name: str,
    upstream: int,
    folder: Path,
    stores: Mapping[str, str] = MappingProxyType({}),
    workers: int = 1,
    compiled: bool = True,
) -> Gateway:
    if compiled:
        compile_path()
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command, environment = serve_command(home, port, upstream=upstream, stores=stores, workers=workers)
    environment["METERGATE_COMPILED"] = "on" if compiled else "off"
    process = Process(name, command, env=environment, folder=folder, port=port)
    wait_ready(port)
    since = "2020-01-01T00:00:00Z"
    for token_class, amount in (("input", "0.28"), ("cache_read", "0.028"), ("output", "0.42")):
        row = {"provider": "bench", "model": "bench-model", "token_class": token_class, "currency": "USD"}
        call_admin(port, "POST", "prices", row | {"amount_per_mtok": amount, "effective_from": since})
    team = call_admin(port, "POST", "teams", {"name": "bench", "settlement_currency": "CNY"})["id"]
    terms = {"team_id": team, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY", "effective_from": since}
    call_admin(port, "POST", "terms", terms)
    budget = {"scope": "team", "scope_id": team, "amount": "1000000", "currency": "CNY", "period": "month"}
    call_admin(port, "POST", "budgets", budget | {"timezone": "Asia/Shanghai", "hard": True})
    limits = {"requests_per_minute": 100_000_000, "tokens_per_minute": 100_000_000_000, "max_parallel": 10_000}
    key = call_admin(port, "POST", "keys", {"team_id": team, "name": "bench", "limits": limits})["key"]

    def rows() -> int:
        start, end = (time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(time.time() + days * 86400)) for days in (-1, 2))
        window = f"start={start}&end={end}&interval=day&timezone=UTC"
        buckets = call_admin(port, "GET", f"usage?{window}")["data"]
        assert isinstance(buckets, list)
        return sum(int(bucket["requests"]) for bucket in buckets)

    target = Target(name, port, "bench-model", headers={"authorization": f"Bearer {key}"})
    return Gateway(process, target, rows)


def litellm(upstream: int, folder: Path) -> Gateway:
    """One worker, a master key and no database: its best case."""
    port = free_port()
    parameters = {"model": "openai/bench-model", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "sk-x"}
    config = folder / "litellm.yaml"
    models = [{"model_name": "bench-model", "litellm_params": parameters}]
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": "sk-bench"}}))
    command = [str(_env("litellm", "litellm")), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    process = Process("litellm", command, env=environment, folder=folder, port=port)
    return Gateway(process, Target("litellm", port, "bench-model", headers={"authorization": "Bearer sk-bench"}))


def portkey(upstream: int, folder: Path) -> Gateway:
    """No keys and no books; the provider is named by the caller's headers."""
    port = free_port()
    script = _env("portkey", "node_modules/@portkey-ai/gateway/build/start-server.js")
    command = ["node", str(script), f"--port={port}", "--headless"]
    environment = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1"}
    process = Process("portkey", command, env=environment, folder=folder, port=port)
    headers = {
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1",
        "authorization": "Bearer sk-x",
    }
    return Gateway(process, Target("portkey", port, "bench-model", headers=headers))


def ferrogw(upstream: int, folder: Path) -> Gateway:
    """The Go gateway on one thread: a master key, no database."""
    return _ferrogw("ferrogw", upstream, folder, {})


def ferrogw_postgresql(upstream: int, folder: Path) -> Gateway:
    """A key of its own kept in PostgreSQL, and a row there for each request, with tokens and cost."""
    database = OwnPostgresql(folder / "ferrogw-pg-postgresql")
    dsn = _dsn(database.url)
    store = {"API_KEY_STORE_BACKEND": "postgres", "API_KEY_STORE_DSN": dsn}
    store |= {"REQUEST_LOG_STORE_BACKEND": "postgres", "REQUEST_LOG_STORE_DSN": dsn}
    gateway = _ferrogw("ferrogw-pg", upstream, folder, store)
    gateway.close = database.remove
    key = call_json(gateway.process.port, "POST", "/admin/keys", FERROGW_KEY, {"name": "bench"})["key"]
    gateway.target.headers["authorization"] = f"Bearer {key}"

    async def count() -> int:
        engine = open_database(database.url)
        try:
            async with engine.connect() as connection:
                return int((await connection.execute(text("SELECT count(*) FROM request_logs"))).scalar_one())
        finally:
            await engine.dispose()

    gateway.rows = lambda: _in_a_loop_of_its_own(count())
    return gateway


def _in_a_loop_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    """The run's own loop waits meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _dsn(url: str) -> str:
    """libpq's key=value form, which every driver understands for a Unix socket."""
    parsed = make_url(url)
    host = parsed.query.get("host", parsed.host)
    return f"host={host} user={parsed.username} dbname={parsed.database} sslmode=disable"


def _ferrogw(name: str, upstream: int, folder: Path, store: dict[str, str]) -> Gateway:
    port = free_port()
    config = folder / f"{name}.yaml"
    settings: dict[str, object] = {"strategy": {"mode": "single"}, "targets": [{"virtual_key": "openai"}]}
    if store:
        logger = {"name": "request-logger", "type": "logging", "stage": "after_request", "enabled": True}
        settings["plugins"] = [logger | {"config": {"persist": True}}]
    config.write_text(json.dumps(settings))
    environment = {
        "GATEWAY_CONFIG": str(config),
        "PORT": str(port),
        "MASTER_KEY": FERROGW_KEY,
        "OPENAI_API_KEY": "sk-x",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{upstream}",
        "RATE_LIMIT_RPS": "1000000",
        "RATE_LIMIT_BURST": "1000000",
        "GOMAXPROCS": "1",
    } | store
    process = Process(name, [str(_env("ferrogw", "ferrogw")), "serve"], env=environment, folder=folder, port=port)
    target = Target(name, port, "gpt-4o", headers={"authorization": f"Bearer {FERROGW_KEY}"})
    return Gateway(process, target)


def tensorzero(upstream: int, folder: Path) -> Gateway:
    """The Rust gateway out of its Python package: observability off, no keys."""
    config = folder / "tensorzero.toml"
    config.write_text(
        "[gateway]\nobservability.enabled = false\n"
        '[models.bench]\nrouting = ["p"]\n[models.bench.providers.p]\ntype = "openai"\nmodel_name = "bench-model"\n'
        f'api_base = "http://127.0.0.1:{upstream}/v1/"\napi_key_location = "none"\n'
    )
    where = folder / "tensorzero.url"
    program = (
        "import pathlib, tensorzero, time\n"
        f"gateway = tensorzero._start_http_gateway(config_file={str(config)!r}, clickhouse_url=None,"
        " postgres_url=None, valkey_url=None, async_setup=False)\n"
        f"pathlib.Path({str(where)!r}).write_text(gateway.base_url)\ntime.sleep(86400)\n"
    )
    started = time.perf_counter()
    process = Process("tensorzero", [str(_env("tensorzero", "python")), "-c", program], env={}, folder=folder, port=0)
    while not where.exists() or not where.read_text():
        if time.perf_counter() - started > 60:
            raise RuntimeError(f"tensorzero did not start: {process.tail()}")
        time.sleep(0.02)
    port = int(where.read_text().split(":")[2].split("/")[0])
    process.port, process.ready_s = port, time.perf_counter() - started
    return Gateway(
        process, Target("tensorzero", port, "tensorzero::model_name::bench", path="/openai/v1/chat/completions")
    )


GATEWAYS: dict[str, Callable[[int, Path], Gateway]] = {
    "forward": bare_forward,
    "metergate": metergate,
    "metergate-interpreted": metergate_interpreted,
    "metergate-pg": metergate_postgresql,
    "metergate-pg-2": metergate_workers,
    "tensorzero": tensorzero,
    "ferrogw": ferrogw,
    "ferrogw-pg": ferrogw_postgresql,
    "portkey": portkey,
    "litellm": litellm,
}


def wait_ready(port: int, deadline_s: float = 60) -> None:
    """Until Metergate's `/health/ready` says 200."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.02)
    raise RuntimeError("Metergate did not become ready")


def call_admin(port: int, method: str, path: str, body: object | None = None) -> dict[str, object]:
    return call_json(port, method, f"/admin/v1/{path}", ADMIN_KEY, body)


def call_json(port: int, method: str, path: str, key: str, body: object | None = None) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, object] = json.load(response)
        return answer


def _env(peer: str, program: str) -> Path:
    """The path of a peer's program. Raises FileNotFoundError with the remedy when it is not installed."""
    path = ENVS / peer / (program if "/" in program else f"bin/{program}")
    if not path.exists():
        raise FileNotFoundError(f"{peer} is not installed: python -m bench.gateways install")
    return path


def install(only: Sequence[str]) -> None:
    """The peers into an environment each, at the version that was compared: all, or those named."""
    wheels = {
        "litellm": ["litellm[proxy]==1.108.7", "uvloop"],
        "ferrogw": ["ferrogw==1.5.10"],
        "tensorzero": ["tensorzero==2026.6.0"],
    }
    for peer, requirements in wheels.items():
        if only and peer not in only:
            continue
        subprocess.run([sys.executable, "-m", "venv", str(ENVS / peer)], check=True)
        subprocess.run([str(ENVS / peer / "bin" / "pip"), "install", "-q", *requirements], check=True)
    if only and "portkey" not in only:
        return
    folder = ENVS / "portkey"
    folder.mkdir(parents=True, exist_ok=True)
    package = {
        "private": True,
        "dependencies": {"@portkey-ai/gateway": "1.15.2"},
        "overrides": {"@hono/node-server": "1.14.1"},
    }
    (folder / "package.json").write_text(json.dumps(package))
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] != ["install"]:
        raise SystemExit("usage: python -m bench.gateways install [PEER …]")
    install(sys.argv[2:])
