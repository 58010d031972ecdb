"""`metergate serve` as a person meets it: what it prints, what it refuses, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.product import ROOT, START_S, Product, alive, running, until

MODEL = "smollm2-135m-instruct"


def ask(product: Product, key: str) -> str:
    with product.caller(key) as caller:
        answer = caller.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
        )
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


def refused(home: Path, *arguments: str, **environ: str) -> str:
    """What a start that fails prints: exactly one line, exit status 1."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", *arguments],
        cwd=ROOT,
        env={**os.environ, "METERGATE_HOME": str(home), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode == 1, lines
    assert len(lines) == 1, lines
    return lines[0]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("start") / "var"


def test_the_printed_curl_line_works_and_the_second_start_is_quick_and_silent_about_keys(home: Path) -> None:
    with running(home) as first:
        key, admin_key = first.team_key, first.admin_key
        assert f"admin key   {admin_key}" in first.text
        line = next(line for line in first.output if line.strip().startswith("curl"))
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
        assert "HTTP/1.1 200" in done.stdout
        assert "x-metergate-cost" in done.stdout
    started = time.monotonic()
    with running(home) as second:
        ask(second, key)
        print(f"\nsecond start to first answer: {time.monotonic() - started:.1f} s")
        assert key not in second.text
        assert admin_key not in second.text
        assert "Metergate serves on" in second.text
    assert "stopped; everything is in the database" in second.text
    assert (home / "admin-key").stat().st_mode & 0o777 == 0o600


def test_no_key_ever_reaches_a_file_or_the_log(home: Path) -> None:
    """Rule 27: the state under METERGATE_HOME holds no team key, whole or its secret part."""
    with running(home) as product:
        done = product.metergate("team", "create", "grep", "--currency", "USD", "--json")
        team_id = re.search(r'"id": "(team_\w+)"', done)
        assert team_id is not None
        made = re.search(r'"key": "(sk-mg-\S+)"', product.metergate("key", "create", team_id[1], "k", "--json"))
        assert made is not None
        key = made[1]
        ask(product, key)
    secret = key.rpartition("-")[2].encode()
    for file in home.rglob("*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file
    assert secret.decode() not in product.text


def test_a_killed_gateway_leaves_no_engine_behind_and_loses_no_row(tmp_path: Path) -> None:
    product = Product(tmp_path / "var").wait_ready()
    key = product.team_key
    request_id = ask(product, key)
    children = product.descendants()
    assert children
    product.kill()
    until(lambda: not any(alive(pid) for pid in children), 20, "every engine process gone")
    product.close()
    with running(tmp_path / "var") as again, again.admin() as admin:
        until(lambda: admin.get(f"/usage/requests/{request_id}").status_code == 200, 10, "the row after adoption")
        assert admin.get(f"/usage/requests/{request_id}").json()["status"] == "completed"


def test_a_killed_engine_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "var") as product:
        engine = product.descendants()[0]
        os.kill(engine, signal.SIGKILL)
        until(lambda: "ended with SIGKILL; starting again" in product.text, 20, "the engine's end noticed")
        until(lambda: product.text.count("[engine local] ready") == 2, 120, "the engine ready again")
        ask(product, product.team_key)


def test_sigterm_lets_a_running_stream_finish(tmp_path: Path) -> None:
    with running(tmp_path / "var") as product, product.caller() as caller:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell a story."}],
            "max_tokens": 64,
            "ignore_eos": True,
            "stream": True,
        }
        with caller.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines: Iterator[str] = answer.iter_lines()
            assert next(lines).startswith("data: ")
            product.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert product.process.wait(60) == 0


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(tmp_path / "var", "--port", str(port))
    assert line == (
        f"metergate: port {port} on 127.0.0.1 is in use; stop the program that has it, or choose another: --port {port + 1}"
    )


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    line = refused(file / "var", "--port", "0")
    assert line.startswith(f"metergate: cannot write to {file / 'var'} ")
    assert "set METERGATE_HOME to a folder that is" in line


def test_an_unknown_setting_is_one_line_that_names_it(tmp_path: Path) -> None:
    config = tmp_path / "metergate.yaml"
    config.write_text("databse_url: sqlite:///x.db\n")
    line = refused(tmp_path / "var", "--port", "0", "--config", str(config))
    assert "databse_url" in line
    assert str(config) in line


def test_more_workers_without_their_stores_is_one_line(tmp_path: Path) -> None:
    assert "PostgreSQL" in refused(tmp_path / "var", "--port", "0", "--workers", "2")


def test_a_second_gateway_on_the_same_home_is_refused(product: Product) -> None:
    line = refused(product.home, "--port", "0")
    assert re.fullmatch(rf"metergate: another metergate serve \(process {product.process.pid}\) runs on .*", line)


def test_rule_26_a_start_on_a_locked_database_waits_and_then_serves_by_itself(tmp_path: Path) -> None:
    config = tmp_path / "metergate.yaml"
    config.write_text("providers: {}\nmodels: []\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    holder = sqlite3.connect(tmp_path / "metergate.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    def ready() -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=START_S, trust_env=False)
        except httpx.TransportError:
            assert product.process.poll() is None, product.text
            return None

    product = Product(tmp_path, config=config, port=port)
    try:
        waiting = until(ready, START_S, "an answer")
        assert (waiting.status_code, "is locked" in waiting.text) == (503, True), waiting.text
        holder.execute("COMMIT")
        until(lambda: (answer := ready()) is not None and answer.status_code == 200, START_S, "a gateway that is ready")
        assert product.text.count("not ready: the database") == 1, product.text
    finally:
        holder.close()
        product.close()
