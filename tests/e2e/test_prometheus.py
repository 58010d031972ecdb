"""A real Prometheus scrapes the running product: every rule and every panel has an answer, and an alert fires live."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import ROOT, Product, running, until
from tests.e2e.prometheus import Prometheus
from tests.helm.test_rules import RULES, expressions

SCRAPED_S = 40


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
    server = Prometheus(
        tmp_path_factory.mktemp("prometheus"),
        {
            "gateway": product.url.removeprefix("http://"),
            "engine": engine_address(product),
            "unpriced": unpriced.url.removeprefix("http://"),
        },
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
    seen_in_some_deployments = re.compile(
        r"negative_margin|unpriced|flawed|estimated|rate_fe|first_content|failures_total|thresholds|refused|drift"
    )
    assert {name for name in asked - names if not seen_in_some_deployments.search(name)} == set(), (
        "asked for and never seen"
    )


def test_an_unpriced_model_raises_its_alert(unpriced: Product, prometheus: Prometheus) -> None:
    with unpriced.caller() as caller:
        call = {"model": "no-price", "messages": [{"role": "user", "content": "hi"}]}
        assert caller.post("/v1/chat/completions", json=call).status_code == 200
    firing = 'ALERTS{alertname="MetergateUnpriced",alertstate="firing",model="no-price"}'
    assert until(lambda: prometheus.value(firing), SCRAPED_S, "the alert fires") == 1
