"""A month of two teams' usage, and a gateway process over it whose models are answered by a scripted provider."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import litestar

from billing.database import open_database
from billing.ledger import AttemptRecord, UsageRecord, record
from billing.rating import AttemptUsage, Payer, rate
from billing.seed import seed
from billing.times import DAY_US, HOUR_US, format_time, now_us
from billing.usage import Usage
from gateway.access.authenticator import Authenticator
from gateway.access.pepper import load_pepper
from gateway.admin.routes import admin_routers
from gateway.admission.build import build_admission
from gateway.catalog import Catalog
from gateway.database import upgrade
from gateway.price_drift import PriceDrift
from gateway.routing.router import Router
from gateway.settings import load_settings
from tests.e2e.product import ROOT, Product, until
from tests.gateway.admin.conftest import Gateway, Operator

ADMIN_KEY = "admin-key-of-the-tests"
START = "2026-01-01T00:00:00Z"
CONFIG = """\
providers:
  deepseek: {{kind: openai, base_url: "{url}/v1"}}
  openai: {{kind: openai, base_url: "{url}/v1"}}
  local: {{kind: openai, base_url: "http://127.0.0.1:9/v1"}}
models:
  - name: deepseek-chat
    context_window: 131072
    max_output_tokens: 8192
    routes: [{{provider: deepseek, model: deepseek-chat, weight: 3}}]
  - name: gpt-4.1
    context_window: 131072
    max_output_tokens: 8192
    routes: [{{provider: openai, model: gpt-4.1}}, {{provider: deepseek, model: deepseek-chat}}]
  - name: in-house
    routes: [{{provider: local, model: in-house}}]
"""
NASTY = "<img src=x onerror=alert(1)>&\"'"


@dataclass(frozen=True, slots=True)
class World:
    """`search` settles in CNY, `ads` in USD; each has the keys of `keys`. `tokens` by role, the team admin's for search."""

    home: Path
    config: Path
    database_url: str
    search: str
    ads: str
    keys: dict[str, str]
    tokens: dict[str, str]
    request: str

    @property
    def environ(self) -> dict[str, str]:
        return {"METERGATE_ADMIN_KEY": ADMIN_KEY, "METERGATE_DATABASE_URL": self.database_url}


@contextlib.contextmanager
def provider(folder: Path) -> Iterator[str]:
    """The scripted provider as a process; yields its address."""
    file = folder / "port"
    command = [sys.executable, "-m", "tests.upstream_server", "--port-file", str(file)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until(lambda: file.exists() and file.read_text().strip(), 60, "the provider's port")
        yield f"http://127.0.0.1:{file.read_text().strip()}"
    finally:
        process.terminate()
        process.wait(30)


def build(folder: Path, upstream: str, database_url: str | None = None, requests: int = 400) -> World:
    """The books of the world, on SQLite unless told otherwise."""
    config = folder / "gateway.yaml"
    config.write_text(CONFIG.format(url=upstream))
    url = database_url or f"sqlite:///{folder / 'world.db'}"
    with ThreadPoolExecutor(1) as pool:  # whatever loop the calling thread has
        return pool.submit(asyncio.run, _build(folder, config, url, requests)).result()


@contextlib.contextmanager
def serving(world: World) -> Iterator[Product]:
    product = Product(world.home, config=world.config, environ=world.environ)
    try:
        yield product.wait_ready()
    finally:
        product.close()


async def _build(folder: Path, config: Path, url: str, requests: int) -> World:
    await upgrade(url)
    database = open_database(url)
    async with database.begin() as connection:
        await seed(connection)
    environ = {
        "METERGATE_HOME": str(folder / "var"),
        "METERGATE_ADMIN_KEY": ADMIN_KEY,
        "METERGATE_DATABASE_URL": url,
    }
    settings = load_settings(config, environ)
    pepper = load_pepper(settings)
    catalog = Catalog(database, pepper, poll_s=60)
    await catalog.start()
    router = Router(settings)
    admission = build_admission(settings, catalog, database)
    drift = PriceDrift(catalog, None)
    gateway = Gateway(settings, database, catalog, Authenticator(catalog, pepper), router, admission, drift)
    app = litestar.Litestar(admin_routers(gateway))
    try:
        transport = httpx.ASGITransport(app=cast(Any, app))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await _fill(gateway, Operator(client), folder, config, url, requests)
    finally:
        await catalog.stop()
        await router.aclose()
        await database.dispose()


async def _fill(gateway: Gateway, operator: Operator, folder: Path, config: Path, url: str, requests: int) -> World:
    search, ads = await operator.team("search"), await operator.team("ads", "USD")
    await operator.team(NASTY, "JPY")
    terms = {"team_id": search, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY", "effective_from": START}
    await operator.post("/terms", terms)
    rates = {"base": "USD", "quote": "CNY"}
    for day in range(32):  # a reference rate is only good for some days
        rates["effective_from"] = format_time(now_us() - day * DAY_US)
        rate_text = f"6.6{529 - day * 7:03d}"
        await operator.post("/rates", {**rates, "kind": "reference", "rate": rate_text, "source": "ECB cross"})
    keys = {}
    for name, team in (("assistant", search), ("batch", search), ("copy", ads)):
        body = {"team_id": team, "name": name, "limits": {"requests_per_minute": 600, "max_parallel": 32}}
        keys[name] = (await operator.post("/keys", body))["id"]
    for scope, scope_id, amount, currency in (
        ("team", search, "40", "CNY"),
        ("key", keys["batch"], "5", "CNY"),
        ("team", ads, "20", "USD"),
    ):
        budget = {"scope": scope, "scope_id": scope_id, "amount": amount, "currency": currency, "period": "month"}
        await operator.post("/budgets", {**budget, "timezone": "Asia/Shanghai"})
    tokens = {}
    for role in ("billing", "operator", "viewer", "team_admin"):
        token: dict[str, str] = {"name": f"the {role}", "role": role}
        if role == "team_admin":
            token["team_id"] = search
        tokens[role] = (await operator.post("/tokens", token))["token"]
    chance = random.Random(7)
    rows = [_row(gateway, chance, search, ads, keys, number, requests) for number in range(requests)]
    async with gateway.database.begin() as connection:
        await record(connection, rows)
    shown = max((row for row in rows if row.status == "completed" and row.team_id == search), key=lambda row: row.id)
    return World(folder / "var", config, url, search, ads, keys, tokens, str(shown.id))


def _row(
    gateway: Gateway, chance: random.Random, search: str, ads: str, keys: dict[str, str], number: int, count: int
) -> UsageRecord:
    """One request of the last thirty days, denser towards now and by day, rated with the catalog's books."""
    back_us = int(30 * 24 * HOUR_US * (chance.random() ** 1.4))
    at_us = now_us() - back_us - number * 1000
    request_id = uuid.UUID(int=((at_us // 1000) << 80) | (7 << 76) | (2 << 62) | chance.getrandbits(62))
    name = chance.choice(("assistant", "assistant", "batch", "copy"))
    team, currency = (ads, "USD") if name == "copy" else (search, "CNY")
    model, provider = chance.choice(
        (("deepseek-chat", "deepseek"), ("gpt-4.1", "openai"), ("deepseek-chat", "deepseek"))
    )
    status = chance.choices(("completed", "failed", "cancelled", "incomplete"), (95, 2, 2, 1))[0]
    usage = Usage()
    if status != "failed":
        usage = Usage(
            input=chance.randint(500, 60_000), cache_read=chance.randint(0, 30_000), output=chance.randint(50, 9_000)
        )
    snapshot = gateway.catalog.snapshot
    used = AttemptUsage(1, provider, model, provider, usage)
    rated = rate(snapshot.books, snapshot.pins, at_us=at_us, payer=Payer(team, currency), charged=used, attempts=[used])
    latency_us = chance.randint(300_000, 9_000_000)
    ttft_us = chance.randint(90_000, 280_000)
    attempt = AttemptRecord(
        1, provider, model, status, usage, rated.attempts[0].cost, rated.attempts[0].price_row_ids,
        "the provider answered 500" if status == "failed" else None, at_us, latency_us, ttft_us,
    )  # fmt: skip
    return UsageRecord(
        id=request_id,
        team_id=team,
        key_id=keys[name],
        model=model,
        provider=provider,
        provider_model=model,
        surface="chat",
        status=status,
        estimated=status == "cancelled",
        streamed=True,
        usage=usage,
        rated=rated,
        attempts=(attempt,),
        tags={"product": chance.choice(("chat", "search"))},
        latency_us=latency_us,
        ttft_us=ttft_us,
        error=attempt.error,
        pins=snapshot.pins,
        settlement_currency=currency,
    )
