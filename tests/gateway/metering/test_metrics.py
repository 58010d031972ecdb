"""What /metrics says is what docs/metrics.md says, with bounded labels."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from billing.money import NANO
from billing.usage import TokenClass, Usage
from gateway.metering.counting import count
from gateway.metrics import MAX_ROUTES, Metrics
from tests.billing.helpers import rated_record

DOC = Path(__file__).parents[3] / "docs" / "metrics.md"


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    rows = re.findall(r"^\| `(metergate_\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$", DOC.read_text(), re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def registered() -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for instrument in vars(Metrics()).values():
        for family in instrument.describe() if hasattr(instrument, "describe") else ():
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, instrument._labelnames)
    return found


def test_the_document_lists_exactly_what_is_registered() -> None:
    assert documented() == registered()


def test_what_is_rendered_is_read_by_prometheus() -> None:
    metrics = Metrics()
    route = metrics.route("chat.completions", "m", "p")
    route.finished("completed", duration_us=1_500_000, ttft_us=200_000, overhead_us=700)
    route.attempted("completed")
    route.recorded({TokenClass.INPUT: 90, TokenClass.CACHE_READ: 5}, unpriced=1, estimated=1, negative_margin=1)
    metrics.paid("settled", "CNY", 420_000_000)
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    where = (("model", "m"), ("provider", "p"))
    assert samples["metergate_requests_total", (*where, ("status", "completed"), ("surface", "chat.completions"))] == 1
    assert samples["metergate_tokens_total", (("class", "cache_read"), *where)] == 5
    assert samples["metergate_money_total", (("amount", "settled"), ("currency", "CNY"))] == 0.42
    assert samples["metergate_unpriced_requests_total", where] == 1
    assert samples["metergate_estimated_requests_total", where] == 1
    assert samples["metergate_attempts_total", (("provider", "p"), ("status", "completed"))] == 1
    assert samples["metergate_request_duration_seconds_sum", (*where, ("surface", "chat.completions"))] == 1.5
    assert samples["metergate_overhead_seconds_sum", (("surface", "chat.completions"),)] == 0.0007


def test_a_route_is_resolved_once() -> None:
    metrics = Metrics()
    assert metrics.route("a", "m", "p") is metrics.route("a", "m", "p")


def test_label_sets_are_bounded_and_the_rest_is_other() -> None:
    metrics = Metrics()
    for at in range(MAX_ROUTES + 50):
        metrics.route("chat.completions", f"model-{at}", "p").finished(
            "completed", duration_us=1, ttft_us=None, overhead_us=None
        )
    labels = {"surface": "chat.completions", "model": "other", "provider": "other", "status": "completed"}
    assert metrics.registry.get_sample_value("metergate_requests_total", labels) == 50


def test_a_batch_is_summed_before_an_instrument_is_touched_and_a_missing_amount_adds_nothing() -> None:
    metrics = Metrics()
    row = rated_record(Usage(input=90, output=10), estimated=True)
    count(metrics, [row, row, replace(row, rated=replace(row.rated, cost=None, unpriced="no price"), status="lost")])
    value = metrics.registry.get_sample_value
    where = {"model": "deepseek-chat", "provider": "deepseek"}
    assert value("metergate_tokens_total", {**where, "class": "input"}) == 270
    assert value("metergate_estimated_requests_total", where) == 3
    assert value("metergate_unpriced_requests_total", where) == 1
    assert value("metergate_requests_total", {**where, "surface": row.surface, "status": "lost"}) == 1
    assert row.rated.cost is not None
    money = {"amount": "cost", "currency": row.rated.cost.currency}
    assert value("metergate_money_total", money) == 2 * row.rated.cost.nano / NANO
