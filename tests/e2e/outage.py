"""A real gateway before three providers, of which one hangs (SIGSTOP), one fails three calls of ten, and one is well."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.routing.retries import BURST, PER_SECOND, SHARE
from tests.e2e.product import Product, running, until
from tests.gateway.api.conftest import Upstream

TIMEOUT_S = 1.0
CONFIG = """\
providers:
  hung: {{kind: openai, base_url: "http://127.0.0.1:{hung}/v1", timeout_s: {timeout_s}, connect_timeout_s: {timeout_s}}}
  limping: {{kind: openai, base_url: "http://127.0.0.1:{limping}/v1", timeout_s: 10}}
  well: {{kind: openai, base_url: "http://127.0.0.1:{well}/v1", timeout_s: 10}}
models:
  - name: m
    strategy: weighted
    routes: [{{provider: hung, model: hung-m}}, {{provider: limping, model: limping-m}}, {{provider: well, model: well-m}}]
"""
BODY = {"model": "m", "messages": [{"role": "user", "content": "foxes"}], "user": "on=limping-m;fail_percent=30"}


@dataclass(frozen=True)
class Outage:
    """What callers saw. `longest_hung_s` is the longest that an attempt waited on the provider that hangs."""

    requests: int
    succeeded: int
    attempts: int
    took_s: float
    longest_s: float
    longest_hung_s: float
    hung_attempts: int

    @property
    def retries(self) -> int:
        return self.attempts - self.requests

    @property
    def retry_budget(self) -> float:
        return BURST + SHARE * self.requests + PER_SECOND * self.took_s


@contextlib.contextmanager
def _stage(folder: Path) -> Iterator[Product]:
    upstreams = {name: Upstream("openai") for name in ("hung", "limping", "well")}
    config = folder / "gateway.yaml"
    ports = {name: each.port for name, each in upstreams.items()}
    config.write_text(CONFIG.format(timeout_s=TIMEOUT_S, **ports))
    try:
        with running(folder / "var", config=config) as product:
            upstreams["hung"].process.send_signal(signal.SIGSTOP)
            yield product
    finally:
        upstreams["hung"].process.send_signal(signal.SIGCONT)
        for each in upstreams.values():
            each.stop()


def run(folder: Path, requests: int, callers: int) -> Outage:
    """`callers` keys, each of one caller that asks again as soon as it is answered."""
    with _stage(folder) as product, product.admin() as admin:
        team = admin.get("/teams").json()["data"][0]["id"]
        made = [admin.post("/keys", json={"team_id": team, "name": f"caller {number}"}) for number in range(callers)]
        keys = [answer.json()["key"] for answer in made]
        began_s = time.monotonic()
        answers = asyncio.run(_ask(product.url, keys, requests))
        took_s = time.monotonic() - began_s
        rows = _rows(admin, len(answers))
    attempts = [attempt for row in rows for attempt in row["attempts"]]
    hung_s = [attempt["latency_ms"] / 1000 for attempt in attempts if attempt["provider"] == "hung"]
    return Outage(
        requests=len(answers),
        succeeded=sum(status == 200 for status, _ in answers),
        attempts=len(attempts),
        took_s=took_s,
        longest_s=max(waited_s for _, waited_s in answers),
        longest_hung_s=max(hung_s, default=0.0),
        hung_attempts=len(hung_s),
    )


async def _ask(url: str, keys: list[str], requests: int) -> list[tuple[int, float]]:
    left = iter(range(requests))
    answers: list[tuple[int, float]] = []

    async def call(client: httpx.AsyncClient, key: str) -> None:
        for _ in left:
            began_s = time.monotonic()
            answer = await client.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {key}"})
            answers.append((answer.status_code, time.monotonic() - began_s))

    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        await asyncio.gather(*(call(client, key) for key in keys))
    return answers


def _rows(admin: httpx.Client, expected: int) -> list[dict[str, Any]]:
    """Every row with its attempts, once all are written."""

    def ids() -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = admin.get("/usage/requests", params={"limit": 200, **({"cursor": cursor} if cursor else {})}).json()
            found += [row["id"] for row in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return found if len(found) == expected else []

    return [admin.get(f"/usage/requests/{each}").json() for each in until(ids, 60, "every row")]
