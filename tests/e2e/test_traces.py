"""The trace of one request that fell back, seen in a real OTLP receiver's process: who was tried, what it used, what it cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.product import ROOT, Product, running, until
from tests.gateway.telemetry.receiver import metrics_of, spans_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRETS = ("what is the secret", "sk-upstream", "sk-receiver")


@contextmanager
def process(*arguments: str, port_file: Path) -> Iterator[str]:
    """The port of a module that is run and writes it down."""
    child = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield until(lambda: port_file.exists() and port_file.read_text().strip(), 20, arguments[0])
    finally:
        child.terminate()
        child.wait(10)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("otlp") / "kept"


@pytest.fixture(scope="module")
def product(kept: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A model whose first provider is down and whose second one answers; the receiver refuses twice before it takes anything."""
    folder = tmp_path_factory.mktemp("traces")
    with ExitStack() as stack:
        upstream = stack.enter_context(
            process("tests.upstream_server", "--port-file", str(folder / "up"), port_file=folder / "up")
        )
        receiver = stack.enter_context(
            process("tests.gateway.telemetry.receiver", str(folder / "otlp"), str(kept), "2", port_file=folder / "otlp")
        )
        config = folder / "metergate.yaml"
        config.write_text(
            f"telemetry: {{endpoint: 'http://127.0.0.1:{receiver}', headers: {{authorization: 'env:RECEIVER_KEY'}}}}\n"
            "providers:\n"
            "  down: {kind: openai, base_url: 'http://127.0.0.1:9/v1', price_as: deepseek}\n"
            f"  up: {{kind: openai, base_url: 'http://127.0.0.1:{upstream}/v1', api_key: 'env:UP_KEY', price_as: deepseek}}\n"
            "models:\n"
            "  - name: deepseek-chat\n"
            "    routes: [{provider: down, model: deepseek-chat}, {provider: up, model: deepseek-chat}]\n"
        )
        environ = {"UP_KEY": SECRETS[1], "RECEIVER_KEY": SECRETS[2]}
        yield stack.enter_context(running(folder / "var", config=config, environ=environ))


def spans_named(kept: Path, of: Callable[[dict[str, Any]], bool], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = until(
        lambda: len(found := [span for span in spans_of(kept) if of(span)]) >= count and found, 30, "the spans"
    )
    return found


def test_a_fallback_is_a_tree_of_three_spans_in_the_caller_s_trace(product: Product, kept: Path) -> None:
    call = {"model": "deepseek-chat", "messages": [{"role": "user", "content": SECRETS[0]}]}
    with product.caller() as caller:
        answer = caller.post("/v1/chat/completions", json=call, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert answer.status_code == 200
    root, failed, answered = spans_named(kept, lambda span: span["traceId"] == TRACE, 3)
    assert root["parentSpanId"] == SPAN and root["kind"] == "SPAN_KIND_SERVER" and root["name"] == "chat deepseek-chat"
    assert failed["parentSpanId"] == answered["parentSpanId"] == root["spanId"]
    assert [each["attributes"]["gen_ai.provider.name"] for each in (failed, answered)] == ["down", "up"]
    assert failed["status"]["code"] == "STATUS_CODE_ERROR" and failed["attributes"]["error.type"] == "failed"
    assert answered["status"] == root["status"] == {}
    with product.admin() as admin:
        row = admin.get(f"/usage/requests/{answer.headers['x-request-id']}").json()
    said = root["attributes"]
    assert said["metergate.request.id"] == row["id"] and said["metergate.attempts"] == 2
    assert said["gen_ai.usage.input_tokens"] == row["tokens"]["total_input"]
    assert said["gen_ai.usage.output_tokens"] == row["tokens"]["output"]
    assert said["metergate.settled.amount"] == row["settled"]["amount"]
    assert answered["attributes"]["metergate.cost.amount"] == row["cost"]["amount"]
    assert root["resource"]["service.name"] == "metergate"
    begun, ended = int(root["startTimeUnixNano"]), int(root["endTimeUnixNano"])
    assert all(begun <= int(each["startTimeUnixNano"]) <= int(each["endTimeUnixNano"]) for each in (failed, answered))
    assert int(answered["endTimeUnixNano"]) <= ended + 2_000_000


def test_without_a_caller_s_trace_one_begins_here(product: Product, kept: Path) -> None:
    call = {"model": "deepseek-chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with product.caller() as caller:
        answer = caller.post("/v1/chat/completions", json=call)
    identifier = answer.headers["x-request-id"]
    spans = spans_named(kept, lambda span: span["traceId"] == identifier.replace("-", ""), 2)
    assert "parentSpanId" not in spans[0] and all(span["parentSpanId"] == spans[0]["spanId"] for span in spans[1:])


def test_the_rest_leaves_at_the_end_with_metrics_and_without_secrets(product: Product, kept: Path) -> None:
    product.close()
    names = {metric["name"]: metric for metric in metrics_of(kept)}
    assert names.keys() >= {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "gen_ai.server.request.duration",
    }
    for metric in names.values():
        for point in metric["histogram"]["dataPoints"]:
            assert sum(map(int, point["bucketCounts"])) == int(point["count"])
            assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
    text = kept.read_text()
    assert '"error"' not in text.replace('"error.type"', "") and not any(secret in text for secret in SECRETS)
    assert product.team_key not in text
