"""A real Prometheus scrapes the running product: every rule and every panel has an answer, and an alert fires live."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.product import ROOT, Product, running, until
from tests.helm.test_rules import RULES, expressions

SCRAPED_S = 40


class Prometheus:
    """One server over the gateway and its engine, scraping each second."""

    def __init__(self, folder: Path, program: str, **targets: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules" / "*.yaml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
            ],
        }
        (folder / "rules").mkdir()
        for path in RULES:
            (folder / "rules" / path.name).write_text(path.read_text().replace("interval: 30s", "interval: 1s"))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=30)

    def ask(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer
        return answer["data"]

    def value(self, expression: str) -> float | None:
        """The one sample that the expression gives now; None while there is none."""
        result = self.ask("/query", query=expression)["result"]
        return float(result[0]["value"][1]) if result else None

    def ready(self) -> bool:
        try:
            return self._client.get("/status/buildinfo").status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._client.close()
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


def engine_address(product: Product) -> str:
    """Where the bundled engine listens: its port file."""
    (port,) = [
        path.read_text().strip() for path in (product.home / "run").iterdir() if path.read_text().strip().isdigit()
    ]
    return f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def unpriced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A gateway in front of a scripted provider whose model has no price."""
    folder = tmp_path_factory.mktemp("unpriced")
    port_file = folder / "port"
    upstream = subprocess.Popen(
        [sys.executable, "-m", "tests.upstream_server", "--port-file", str(port_file)], cwd=ROOT
    )
    try:
        port = until(lambda: port_file.exists() and port_file.read_text().strip(), 20, "the scripted provider")
        config = folder / "metergate.yaml"
        config.write_text(
            f"providers: {{up: {{kind: openai, base_url: 'http://127.0.0.1:{port}/v1'}}}}\n"
            "models: [{name: no-price, routes: [{provider: up, model: no-price}]}]\n"
        )
        with running(folder / "var", config=config) as product:
            yield product
    finally:
        upstream.terminate()
        upstream.wait(10)


@pytest.fixture(scope="module")
def prometheus(product: Product, unpriced: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt install prometheus)")
    server = Prometheus(
        tmp_path_factory.mktemp("prometheus"),
        program,
        gateway=product.url.removeprefix("http://"),
        engine=engine_address(product),
        unpriced=unpriced.url.removeprefix("http://"),
    )
    try:
        until(server.ready, SCRAPED_S, "it answers")
        until(lambda: server.value("sum(up)") == 3, SCRAPED_S, "all three are scraped")
        yield server
    finally:
        server.close()


def test_every_expression_of_rules_and_dashboards_is_answered(product: Product, prometheus: Prometheus) -> None:
    call = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}

    def seen() -> bool:
        with product.caller() as caller:
            assert caller.post("/v1/chat/completions", json=call).status_code == 200
        return bool(prometheus.value("metergate:requests:rate5m > 0")) and bool(
            prometheus.value("metergate_recorder_rows_total > 1")
        )

    until(seen, SCRAPED_S, "requests and their rows are seen, and the recording rules are evaluated")
    for _, expression in expressions():
        prometheus.ask("/query", query=expression)
    groups = prometheus.ask("/rules")["groups"]
    assert {path.name for path in RULES} == {Path(group["file"]).name for group in groups}
    for group in groups:
        for rule in group["rules"]:
            assert rule["health"] == "ok" and not rule.get("lastError"), rule
    names = set(prometheus.ask("/label/__name__/values"))
    asked = {
        name for _, expression in expressions() for name in re.findall(r"(?<![\w:])metergate_\w+\b(?!:)", expression)
    }
    counts_of_trouble = re.compile(r"negative_margin|unpriced|flawed|estimated|failures_total|thresholds|refused|drift")
    assert {name for name in asked - names if not counts_of_trouble.search(name)} == set(), "asked for and never seen"


def test_an_unpriced_model_raises_its_alert(unpriced: Product, prometheus: Prometheus) -> None:
    with unpriced.caller() as caller:
        call = {"model": "no-price", "messages": [{"role": "user", "content": "hi"}]}
        assert caller.post("/v1/chat/completions", json=call).status_code == 200
    firing = 'ALERTS{alertname="MetergateUnpriced",alertstate="firing",model="no-price"}'
    assert until(lambda: prometheus.value(firing), SCRAPED_S, "the alert fires") == 1
