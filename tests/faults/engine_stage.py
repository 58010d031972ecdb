"""A gateway with a bundled engine of its own, small enough to be killed in the middle of an answer again and again."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.callers import Callers, Heard, Wish
from tests.faults.gateway_law import Row, rows_of, sums
from tests.faults.processes import descendants
from tests.faults.stage import SINCE, GatewayProcess
from tests.gateway.metering.books import BooksDatabase

WINDOW = 2048


class EngineCallers(Callers):
    """They ask for exactly `output` tokens, which the engine then makes whatever they are."""

    def body(self, wish: Wish) -> dict[str, Any]:
        body = super().body(wish) | {"max_tokens": wish.output, "temperature": 0}
        del body["user"]
        return body | {"ignore_eos": True}


class EngineStage:
    """`metergate serve` with the model in `model` as its only provider, over the database `url`."""

    def __init__(self, home: Path, url: str, model: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.database = BooksDatabase(url)
        self.dice = random.Random()
        route = {"provider": "local", "model": "tiny"}
        arguments = [
            "--served-model-name",
            "tiny",
            "--device",
            "cpu",
            "--kernels",
            "torch",
            "--dtype",
            "float32",
            "--max-num-seqs",
            "8",
        ]
        arguments += ["--kv-cache-memory-bytes", str(64 << 20), "--max-model-len", str(WINDOW)]
        self.gateway = GatewayProcess(
            home,
            {
                "database_url": url,
                "providers": {"local": {"kind": "engine", "model": str(model), "engine_args": arguments}},
                "models": [{"name": "m", "context_window": WINDOW, "max_output_tokens": WINDOW, "routes": [route]}],
                "log_level": "warning",
            },
        )
        self.callers = EngineCallers(self.gateway.port, "")

    def open(self) -> None:
        self.gateway.start()
        self.gateway.wait_ready()
        admin = self.gateway.admin
        for kind, amount in (("input", "0.28"), ("output", "0.42")):
            row = {"provider": "local", "model": "tiny", "token_class": kind, "currency": "USD"}
            admin("prices", row | {"amount_per_mtok": amount, "effective_from": SINCE})
        team = admin("teams", {"name": "faults", "settlement_currency": "USD"})["id"]
        self.callers.key = admin("keys", {"team_id": team, "name": "faults"})["key"]

    def engine(self) -> list[int]:
        """The engine's HTTP process, then its core, while they live."""
        return [
            *descendants(self.gateway.pid, "local_engine", "serve"),
            *descendants(self.gateway.pid, "local_engine.core_process"),
        ]


def violations(stage: EngineStage) -> list[str]:
    """Every request that got an id has one row; a complete answer is `completed` with the tokens that were made, nothing else is;
    attempts are numbered without a gap and only the last can have answered."""
    rows = rows_of(stage.database)
    found = [fault for heard in stage.callers.heard for fault in _of_one(heard, rows.get(heard.request_id))]
    if len(rows) > len(stage.callers.heard):
        found.append(f"{len(rows)} rows for {len(stage.callers.heard)} requests")
    attempts: Counter[object] = Counter()
    sql = "SELECT a.usage_id, a.sequence, a.status, u.status FROM attempts a JOIN usage u ON u.id = a.usage_id"
    for usage_id, sequence, status, whole in stage.database.rows(f"{sql} ORDER BY a.usage_id, a.sequence"):
        attempts[usage_id] += 1
        if sequence != attempts[usage_id]:
            found.append(f"{usage_id} has an attempt {sequence} in place {attempts[usage_id]}")
        if (status == "completed") > (whole == "completed"):
            found.append(f"{usage_id} is {whole} and its attempt {sequence} is completed")
    return found + sums(stage.database)


def _of_one(heard: Heard, row: Row | None) -> list[str]:
    name, wish = heard.request_id, heard.wish
    if row is None:
        return [f"{name} was heard and has no row"] if heard.status == 200 else []
    exact = (row.status, row.estimated, row.total_output) == ("completed", False, wish.output)
    if heard.complete:
        return [] if exact else [f"{name} was answered with {wish.output} tokens; its row is {row}"]
    if row.status == "completed":
        return [f"{name} was not answered; its row is {row}"]
    if heard.events > 1 and not row.total_output and row.status != "lost":
        return [f"{name} was sent {heard.events} events; its row is {row}"]
    return []
