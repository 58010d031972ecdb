"""A real Prometheus over a gateway that everything happens to: each trouble that a minute can bring about raises its alert.

The rules are the shipped ones; only their waits are cut to a second, and two ages to three seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.product import until
from tests.e2e.prometheus import Prometheus
from tests.faults.callers import Callers, Wish
from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import Provider, Stage, get
from tests.fixtures.valkey import ValkeyServer

DEADLINE_S = 60.0
NOWHERE = "http://127.0.0.1:9"
AGES = {
    "metergate_journal_unshipped_seconds > 300": "metergate_journal_unshipped_seconds > 3",
    "metergate_catalog_stale_seconds > 60": "metergate_catalog_stale_seconds > 3",
}


def at_once(rules: str) -> str:
    for long, short in AGES.items():
        rules = rules.replace(long, short)
    return re.sub(r"^( +for:) \d+[smh]$", r"\1 1s", rules, flags=re.MULTILINE)


class Troubled(Stage):
    """One gateway with a model for each trouble, and Prometheus beside it."""

    database_server: OwnPostgresql
    prometheus: Prometheus

    def ask(self, count: int, model: str = "m", trouble: str = "", key: str | None = None, tags: str = "") -> list[int]:
        """The statuses of so many requests, eight at a time."""

        async def all_of_them() -> list[int]:
            gate = asyncio.Semaphore(8)
            callers = Callers(self.gateway.port, key or self.callers.key, model)

            async def one() -> int:
                async with gate:
                    wish = Wish(9, 5, streamed=bool(trouble), trouble=trouble, tags=tags)
                    return (await callers.ask(wish, 60.0)).status

            return await asyncio.gather(*(one() for _ in range(count)))

        return asyncio.run(all_of_them())

    def raises(self, *alerts: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Returns when each has fired; one may have ended by then."""
        missing = set(alerts)
        until_s = time.monotonic() + DEADLINE_S
        while missing := missing - self.prometheus.firing():
            assert time.monotonic() < until_s, f"{missing} do not fire"
            meanwhile()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def stage(postgresql_server: object) -> Iterator[Troubled]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: apt install prometheus)")
    with tempfile.TemporaryDirectory(prefix="metergate-alerts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chmod(folder, stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH | stat.S_IRGRP | stat.S_IROTH)
        provider, valkey, database = Provider(), ValkeyServer(folder), OwnPostgresql(folder / "postgresql")
        valkey.start()
        stage = Troubled(folder / "home", database.url, provider, valkey)
        stage.database_server = database
        _configure(stage)
        stage.database.migrate()
        try:
            stage.open()
            (folder / "prometheus").mkdir()
            stage.prometheus = Prometheus(
                folder / "prometheus", {"gateway": f"127.0.0.1:{stage.gateway.port}"}, at_once
            )
            until(stage.prometheus.ready, DEADLINE_S, "Prometheus answers")
            until(lambda: stage.prometheus.value("up") == 1, DEADLINE_S, "the gateway is scraped")
            yield stage
            stage.prometheus.close()
        finally:
            stage.kill_everything()
            valkey.stop()
            provider.stop()
            database.remove()


def _configure(stage: Troubled) -> None:
    config = stage.config
    models, providers = config["models"], config["providers"]
    assert isinstance(models, list) and isinstance(providers, dict)
    providers["down"] = {"kind": "openai", "base_url": f"{NOWHERE}/v1", "price_as": "up"}
    models += [
        {"name": "bad", "routes": [{"provider": "down", "model": "up-m"}]},
        {"name": "no-price", "routes": [{"provider": "up", "model": "other"}]},
        {"name": "kept", "cache": "team", "routes": [{"provider": "up", "model": "up-m"}]},
    ]
    feed = {"name": "nowhere", "format": "json", "url": f"{NOWHERE}/rates", "networks": ["127.0.0.0/8"]}
    config |= {
        "journal": {"max_bytes": 1 << 20},
        "rates": {"feeds": [feed]},
        "webhook": {"url": f"{NOWHERE}/hook", "secret": "a-secret-of-the-test", "networks": ["127.0.0.0/8"]},
        "telemetry": {"endpoint": NOWHERE},
    }
    stage.gateway.configure(config)


def test_an_ordinary_start_is_silent_but_for_what_is_nowhere(stage: Troubled) -> None:
    assert set(stage.ask(20)) == {200}
    stage.raises("MetergateRateFeedStale")
    assert stage.prometheus.firing() <= {"MetergateRateFeedStale", "MetergateSpansDropped"}


def test_what_callers_and_providers_do(stage: Troubled) -> None:
    assert set(stage.ask(40, "bad")) <= {502, 503}
    assert set(stage.ask(3, "no-price", key=_key_without_budget(stage))) == {200}
    stage.ask(20, trouble="usage=none")

    def go_on() -> None:
        stage.ask(2, "bad")
        stage.ask(5, trouble="cached=99")

    stage.raises(
        "MetergateFailures", "MetergateProviderFails", "MetergateUnpriced", "MetergateMostlyEstimated", "MetergateFlawedUsage",
        "MetergateRouteOpen", meanwhile=go_on,
    )  # fmt: skip


def test_what_runs_out_and_nobody_hears_of_it(stage: Troubled) -> None:
    for name in ("one", "two", "three"):
        assert set(stage.ask(2, key=_spent_key(stage, name))) == {402}
    stage.raises(
        "MetergateBudgetExhausted", "MetergateWebhookFails", "MetergateSpansDropped", meanwhile=lambda: stage.ask(1)
    )


def test_what_dies_beside_the_gateway(stage: Troubled) -> None:
    killed: set[int] = set()
    for _ in range(3):
        (recorder,) = until(
            lambda: [pid for pid in stage.gateway.recorders() if pid not in killed], DEADLINE_S, "a recorder"
        )
        os.kill(recorder, signal.SIGKILL)
        killed.add(recorder)
    stage.raises("MetergateRecorderRestarts")
    valkey = stage.valkey
    assert valkey is not None
    valkey.kill()
    stage.raises(
        "MetergateLimitStoreDown", "MetergateAnswerCacheFails", meanwhile=lambda: _ask_for_what_may_be_kept(stage)
    )
    valkey.start()
    stage.raises("MetergateLimitStoreReset")


def test_a_database_that_is_away_until_the_journal_is_full(stage: Troubled) -> None:
    until(lambda: set(stage.ask(2)) == {200}, DEADLINE_S, "budgets are made again after the limit store's reset")
    stage.database_server.stop()
    stage.raises("MetergateJournalNotShipped", "MetergateCatalogStale", meanwhile=lambda: stage.ask(2))
    filler = ",".join(f"t{at}={'x' * 200}" for at in range(8))
    stage.raises(
        "MetergateJournalNearlyFull", "MetergateJournalNotWritable", meanwhile=lambda: stage.ask(100, tags=filler)
    )
    stage.database_server.start()
    until(lambda: "MetergateJournalNotWritable" not in stage.prometheus.firing(), DEADLINE_S, "it recovers by itself")


def test_a_gateway_that_starts_again_and_again(stage: Troubled) -> None:
    for _ in range(3):
        started = stage.prometheus.value("metergate_start_time_seconds")
        stage.gateway.kill()
        stage.gateway.start()
        stage.gateway.wait_ready()
        again = f"metergate_start_time_seconds > {started}"
        until(lambda: stage.prometheus.value(again), DEADLINE_S, "it is scraped")  # noqa: B023
    stage.raises("MetergateGatewayRestarts")


def _ask_for_what_may_be_kept(stage: Troubled) -> None:
    body = {"model": "kept", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    with contextlib.suppress(OSError):  # the limit store is away, too: 503
        get(
            f"http://127.0.0.1:{stage.gateway.port}/v1/chat/completions",
            {"authorization": f"Bearer {stage.callers.key}"},
            body,
        )


def _key_without_budget(stage: Troubled) -> str:
    team = stage.gateway.admin("teams", {"name": "free", "settlement_currency": "USD"})["id"]
    return str(stage.gateway.admin("keys", {"team_id": team, "name": "free"})["key"])


def _spent_key(stage: Troubled, name: str) -> str:
    team = stage.gateway.admin("teams", {"name": name, "settlement_currency": "USD"})["id"]
    budget = {"scope": "team", "scope_id": team, "amount": "0.000001", "currency": "USD", "period": "total"}
    stage.gateway.admin("budgets", budget | {"timezone": "UTC", "hard": True})
    return str(stage.gateway.admin("keys", {"team_id": team, "name": name})["key"])
