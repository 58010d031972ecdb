"""Two workers under one `metergate serve`: one set of figures and of books, and a killed one loses no row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metering.position import read_position
from gateway.metering.segments import process_folders
from tests.e2e.product import ROOT, Product, descendants, running, until
from tests.fixtures.databases import PostgresqlServer
from tests.fixtures.valkey import ValkeyServer, valkey_server
from tests.gateway.metering.books import BooksDatabase

__all__ = ["valkey_server"]

MODEL = "m"
SINCE = "2020-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def provider() -> Iterator[int]:
    """The port of a scripted provider."""
    command = [sys.executable, "-m", "tests.upstream_server", "--kind", "openai"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.terminate()
    process.wait()
    process.stdout.close()


class Fleet:
    """A product with two workers, and a team's key."""

    def __init__(self, product: Product, books: BooksDatabase) -> None:
        self.product = product
        self.books = books
        self.answered = 0
        with product.admin() as admin:
            for kind, amount in (("input", "0.28"), ("output", "0.42")):
                price = {"provider": "up", "model": MODEL, "token_class": kind, "currency": "USD"}
                _made(admin.post("/prices", json=price | {"amount_per_mtok": amount, "effective_from": SINCE}))
            team = _made(admin.post("/teams", json={"name": "search", "settlement_currency": "USD"}))["id"]
            budget = {"scope": "team", "scope_id": team, "amount": "100", "currency": "USD", "period": "total"}
            _made(admin.post("/budgets", json=budget | {"timezone": "UTC", "hard": True}))
            self.key = _made(admin.post("/keys", json={"team_id": team, "name": "ci"}))["key"]

        def known_everywhere() -> bool:  # each worker polls the catalog by itself
            return all(self._once("GET", "/v1/models").status_code == 200 for _ in range(12))

        until(known_everywhere, 30, "every worker knows the key")

    def _once(self, method: str, path: str, body: object | None = None) -> httpx.Response:
        """Over a connection of its own, so that any worker may get it."""
        with self.product.caller(self.key) as caller:
            return caller.request(method, path, json=body)

    def ask(self, count: int) -> None:
        """So many calls at once; one whose worker is killed under it is not counted as answered."""

        def call(_: int) -> int:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me something."}], "max_tokens": 20}
            try:
                return self._once("POST", "/v1/chat/completions", body).status_code
            except httpx.TransportError:
                return 0

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(call, range(count)))
        assert set(statuses) <= {0, 200}, statuses
        self.answered += statuses.count(200)

    def workers(self) -> list[int]:
        return [pid for pid in descendants(self.product.process.pid) if "gateway.serve.worker" in _command(pid)]

    def figure(self, name: str, **labels: str) -> float:
        """As any worker tells it."""
        text = self._once("GET", "/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"metergate_{name}" and labels.items() <= sample.labels.items()
        )

    def rows(self, condition: str = "TRUE") -> int:
        return self.books.count("usage", condition)


def _made(answer: httpx.Response) -> Any:
    assert answer.status_code == 201, answer.text
    return answer.json()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory,
    postgresql_server: PostgresqlServer,
    valkey_server: ValkeyServer,
    provider: int,
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    database_url = postgresql_server.create(migrated=True)
    config = folder / "metergate.yaml"
    routes = [{"provider": "up", "model": MODEL}]
    providers = {"up": {"kind": "openai", "base_url": f"http://127.0.0.1:{provider}/v1"}}
    models = [{"name": MODEL, "context_window": 8192, "routes": routes}]
    stores = {"database_url": database_url, "redis_url": valkey_server.url}
    config.write_text(json.dumps({"providers": providers, "models": models} | stores))
    with running(folder / "var", config=config, workers=2) as product:
        yield Fleet(product, BooksDatabase(database_url))
    postgresql_server.drop(database_url)


def test_the_figures_of_both_are_one_and_a_killed_worker_loses_no_row(fleet: Fleet) -> None:
    fleet.ask(40)
    journals = process_folders(fleet.product.home / "journal")
    assert len(journals) == 2
    for _ in range(6):
        assert fleet.figure("requests_total", status="completed") == 40
    until(lambda: fleet.figure("recorder_rows_total") == 40, 30, "both recorders' rows are in the figures")
    assert fleet.figure("journal_writable") == 1
    text = fleet._once("GET", "/metrics").text
    for at_zero in ("dead_letters_total", "recorder_restarts_total", 'webhooks_total{result="given_up"}'):
        assert f"metergate_{at_zero} 0.0" in text, "a counter that is born at 1 has no increase that an alert could see"

    before = fleet.workers()
    assert len(before) == 2
    killed = before[0]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(fleet.ask, 60)
        os.kill(killed, signal.SIGKILL)
        asking.result()
    until(lambda: len(fleet.workers()) == 2 and killed not in fleet.workers(), 30, "another takes its place")
    fleet.ask(20)

    def all_shipped() -> bool:
        dead = [folder for folder in journals if read_position(folder).complete_us is not None]
        return len(dead) == 1 and fleet.rows("status = 'completed'") >= fleet.answered

    until(all_shipped, 60, "the dead worker's journal is adopted and every answered request is a row")
    assert fleet.rows() - fleet.rows("status = 'completed'") <= 8, "only what ran when it died can be anything else"
    assert fleet.figure("requests_total", status="completed") >= 40 + 20, "what the dead one had counted stays"
    # What it counted in the second before its death may be missing, but no row was written twice.
    assert fleet.rows() == fleet.books.count("attempts")


def test_sighup_reaches_every_worker(fleet: Fleet) -> None:
    config = json.loads(Path(fleet.product.home.parent / "metergate.yaml").read_text())
    config["models"].append({**config["models"][0], "name": "second"})
    Path(fleet.product.home.parent / "metergate.yaml").write_text(json.dumps(config))
    fleet.product.process.send_signal(signal.SIGHUP)

    def known() -> bool:
        return all(fleet._once("GET", "/v1/models/second").status_code == 200 for _ in range(12))

    until(known, 20, "every worker serves the new model")


def test_workers_die_with_their_parent(fleet: Fleet) -> None:
    """The last one: nothing is left of the product that the others shared."""

    def complete() -> list[int]:
        """Two workers, each with a recorder."""
        everyone = fleet.product.descendants()
        return everyone if len(everyone) == 4 else []

    everyone = until(complete, 30, "two workers, each with a recorder")
    fleet.product.kill()
    until(lambda: not any("gateway" in _command(pid) for pid in everyone), 20, "nobody is left")
