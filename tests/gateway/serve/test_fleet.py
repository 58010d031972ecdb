"""The parent of several workers looks after them: one that stands still is replaced, and that is counted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
from pathlib import Path

import httpx
import pytest
from sqlalchemy import make_url

from gateway.serve.fleet import Fleet
from tests.e2e.product import alive

DEADLINE_S = 60.0
BEAT_S = 0.5


async def test_a_worker_that_stands_still_is_replaced_and_counted(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    config = tmp_path / "metergate.yaml"
    config.write_text(json.dumps({"database_url": sqlite_url, "providers": {}, "models": []}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fleet = Fleet(config, [listener], 1, beat_s=BEAT_S)
        running = asyncio.create_task(fleet.run(1.0))
        (worker,) = fleet.workers
        await asyncio.wait_for(fleet.all_serving(), DEADLINE_S)
        first = worker.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        async with httpx.AsyncClient(base_url=fleet.address, timeout=DEADLINE_S, trust_env=False) as client:
            figures = (await client.get("/metrics")).text  # nobody accepts before there is a successor
        assert worker.restarts >= 1 and not alive(first)
        assert f"metergate_worker_restarts_total {worker.restarts}.0" in figures
        fleet.stop()
        await asyncio.wait_for(running, DEADLINE_S)


async def test_rule_26_workers_wait_for_a_database_that_is_away_and_say_that_they_are_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    config = tmp_path / "metergate.yaml"
    away = "postgresql://someone@127.0.0.1:1/books"
    config.write_text(json.dumps({"database_url": away, "providers": {}, "models": []}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fleet = Fleet(config, [listener], 1)
        running = asyncio.create_task(fleet.run(1.0))
        async with httpx.AsyncClient(base_url=fleet.address, timeout=DEADLINE_S, trust_env=False) as client:
            asked = asyncio.create_task(client.get("/health/ready"))
            await asyncio.wait({asked, running}, return_when=asyncio.FIRST_COMPLETED)
            assert asked.done(), running
            assert (asked.result().status_code, "127.0.0.1:1/books" in asked.result().text) == (503, True)
        fleet.stop()
        await asyncio.wait_for(running, DEADLINE_S)


async def test_rule_26_workers_that_died_all_say_that_they_live_while_the_database_is_held(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    config = tmp_path / "metergate.yaml"
    config.write_text(json.dumps({"database_url": sqlite_url, "providers": {}, "models": []}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fleet = Fleet(config, [listener], 2)
        running = asyncio.create_task(fleet.run(1.0))
        await asyncio.wait_for(fleet.all_serving(), DEADLINE_S)
        holder = sqlite3.connect(str(make_url(sqlite_url).database), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for worker in fleet.workers:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        async with httpx.AsyncClient(base_url=fleet.address, timeout=DEADLINE_S, trust_env=False) as client:
            while (answer := await client.get("/health/ready")).status_code != 503:
                pass
            assert "database" in answer.text
        holder.close()
        fleet.stop()
        await asyncio.wait_for(running, DEADLINE_S)
