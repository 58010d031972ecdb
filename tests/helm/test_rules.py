"""Laws of the alerts and dashboards: promtool accepts them, each alert fires on its cause, and every name and label is ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from gateway.metrics import Metrics
from local_engine.messages import Stats
from local_engine.metrics import EngineMetrics
from tests.helm.charts import CHART, GOOD, of_kind, render

RULES: Final = sorted((CHART / "files" / "rules").glob("*.yaml"))
DASHBOARDS: Final = sorted((CHART / "files" / "dashboards").glob("*.json"))
GIVEN_BY_PROMETHEUS: Final = {"instance", "job", "le"}

Rule = dict[str, Any]


def rules() -> list[Rule]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Rule]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def panels() -> Iterator[tuple[str, str]]:
    """Each expression of each dashboard, with Grafana's variables filled in."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "5m").replace("$model", ".*")
                yield f"{path.stem}: {panel['title']}", expression


def expressions() -> list[tuple[str, str]]:
    named = [(str(rule.get("alert") or rule["record"]), rule["expr"]) for rule in rules()]
    return [*named, *panels()]


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    return found


def series() -> dict[str, set[str]]:
    """Every series that a gateway or an engine shows, with its labels."""
    found: dict[str, set[str]] = {}

    def add(family: Metric, labels: set[str]) -> None:
        if family.type == "counter":
            found[f"{family.name}_total"] = labels
        elif family.type == "histogram":
            for suffix in ("bucket", "sum", "count"):
                found[f"{family.name}_{suffix}"] = labels
        else:
            found[family.name] = labels

    for instrument in vars(Metrics()).values():
        for family in instrument.describe() if hasattr(instrument, "describe") else ():
            add(family, set(instrument._labelnames))
    engine = EngineMetrics("m")
    engine.follow(lambda: Stats())
    for family in engine.registry.collect():
        add(family, {"model_name", *({"status"} if family.name.endswith("_requests") else ())})
    return found


def recorded() -> dict[str, set[str]]:
    """The recording rules' own series: what they are summed by."""
    labels = {}
    for rule in rules():
        if "record" in rule:
            by = re.search(r"by \(([\w, ]+)\)", rule["expr"])
            labels[rule["record"]] = set(by.group(1).replace(" ", "").split(",")) if by else set()
    return labels


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_promtool_accepts_the_rules(path: Path) -> None:
    check = subprocess.run(
        [promtool(), "check", "rules", "--lint=all", str(path)], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_promtool_accepts_them_as_the_chart_renders_them(tmp_path: Path) -> None:
    (rendered,) = of_kind(render(GOOD["everything"]), "PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rendered["spec"]))
    check = subprocess.run([promtool(), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr
    assert f"{len(rules())} rules found" in check.stdout


@pytest.mark.parametrize(("name", "expression"), expressions())
def test_every_name_and_label_is_one_of_ours(name: str, expression: str) -> None:
    known = series() | recorded()
    used = re.findall(r"\b((?:\w+:)?metergate[\w:]*)\s*(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', expression))
    assert used, "it asks for nothing"
    available = set(GIVEN_BY_PROMETHEUS)
    for metric, selector in used:
        assert metric in known, f"{metric} is shown by nobody"
        labels = known[metric] | GIVEN_BY_PROMETHEUS
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= labels, metric
        available |= labels
    for clause in re.findall(r"by \(([\w, ]+)\)", expression):
        assert set(clause.replace(" ", "").split(",")) <= available


def test_every_metric_of_ours_is_on_a_dashboard_or_in_an_alert() -> None:
    asked = {
        name for _, expression in expressions() for name in re.findall(r"(?<![\w:])metergate_\w+\b(?!:)", expression)
    }
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series() if name.startswith("metergate_")}
    assert {name for name in ours if not any(each.startswith(name) for each in asked)} == set()


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("page", "ticket"), name
        assert rule["annotations"].keys() == {"summary", "action"}, name
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            used = re.findall(r"\b((?:\w+:)?metergate[\w:]*)", rule["expr"])
            assert any(label in (series() | recorded())[metric] | GIVEN_BY_PROMETHEUS for metric in used), name


WHERE: Final = 'instance="gateway-0"'
REFUSED: Final = {
    'metergate_requests_total{status="completed",model="m"}': "0+10x60",
    'metergate_refused_total{code="503"}': "0+10x60",
}
FIRES: Final[dict[str, dict[str, str]]] = {
    "MetergateJournalNotWritable": {f"metergate_journal_writable{{{WHERE}}}": "0x60"},
    "MetergateJournalNotShipped": {f"metergate_journal_unshipped_seconds{{{WHERE}}}": "0+60x60"},
    "MetergateJournalFillsItsVolume": {f"metergate_journal_unshipped_bytes{{{WHERE}}}": "2000000000x60"},
    "MetergateJournalNearlyFull": {
        f"metergate_journal_room_bytes{{{WHERE}}}": "100x60",
        f"metergate_journal_bytes{{{WHERE}}}": "900x60",
    },
    "MetergateJournalShortened": {f"metergate_journal_shortened_segments_total{{{WHERE}}}": "0x50 1x10"},
    "MetergateRecorderFails": {f'metergate_recorder_failures_total{{{WHERE},reason="rows"}}': "0x50 0+1x10"},
    "MetergateRecorderRestarts": {f"metergate_recorder_restarts_total{{{WHERE}}}": "0x50 0+1x10"},
    "MetergateWorkerRestarts": {f"metergate_worker_restarts_total{{{WHERE}}}": "0x50 1x10"},
    "MetergateGatewayRestarts": {f"metergate_start_time_seconds{{{WHERE}}}": "0x50 0+60x10"},
    "MetergateLimitStoreReset": {f"metergate_limit_store_resets_total{{{WHERE}}}": "0x50 1x10"},
    "MetergateAnswerCacheFails": {f'metergate_answer_cache_total{{{WHERE},result="failed"}}': "0x40 0+5x20"},
    "MetergateJournalDamaged": {f"metergate_journal_damaged_bytes_total{{{WHERE}}}": "0x50 4096x10"},
    "MetergateDeadLetters": {f"metergate_dead_letters_total{{{WHERE}}}": "0x50 1x10"},
    "MetergateCatalogStale": {f"metergate_catalog_stale_seconds{{{WHERE}}}": "0+60x60"},
    "MetergateLimitStoreDown": {f"metergate_limit_store_up{{{WHERE}}}": "0x60"},
    "MetergateFailures": REFUSED,
    "MetergateRouteOpen": {'metergate_route_circuit{model="m",provider="p",provider_model="pm"}': "2x60"},
    "MetergateProviderFails": {
        'metergate_attempts_total{provider="p",status="failed"}': "0+10x60",
        'metergate_attempts_total{provider="p",status="completed"}': "0+10x60",
    },
    "MetergateSlow": {
        'metergate_overhead_seconds_bucket{surface="s",le="0.05"}': "0x60",
        'metergate_overhead_seconds_bucket{surface="s",le="0.25"}': "0+10x60",
        'metergate_overhead_seconds_bucket{surface="s",le="+Inf"}': "0+10x60",
    },
    "MetergateUnpriced": {'metergate_unpriced_requests_total{model="m",provider="p"}': "_x57 1x2"},
    "MetergateAmountTooLarge": {"metergate_overflow_requests_total": "0x50 1x10"},
    "MetergateNegativeMargin": {'metergate_negative_margin_requests_total{model="m",provider="p"}': "_x57 1x2"},
    "MetergateDrift": {'metergate_drift{table="rollup_money"}': "0x50 1x10"},
    "MetergateAuditChainBroken": {f"metergate_audit_chain_broken{{{WHERE}}}": "0x50 1x10"},
    "MetergateWalletsLow": {"metergate_wallets_low": "2x60"},
    "MetergateBudgetExhausted": {'metergate_budget_thresholds_total{scope="team",percent="refused"}': "_x57 1x2"},
    "MetergatePriceDrift": {'metergate_price_drift{source="shipped"}': "2x180"},
    "MetergateRateFeedStale": {'metergate_rate_feed_age_seconds{feed="ecb"}': "500000x180"},
    "MetergateRateFeedRefused": {'metergate_rate_fetches_total{feed="ecb",result="refused"}': "0x50 1x10"},
    "MetergateRateFeedFails": {
        'metergate_rate_fetches_total{feed="ecb",result="failed"}': "0+1x60",
        'metergate_rate_fetches_total{feed="ecb",result="taken"}': "3x60",
    },
    "MetergateFlawedUsage": {'metergate_flawed_usage_total{provider="p"}': "0x50 20x10"},
    "MetergateMostlyEstimated": {
        'metergate_estimated_requests_total{model="m",provider="p"}': "0+1x120",
        'metergate_requests_total{model="m",status="cancelled"}': "0+10x120",
    },
    "MetergateWebhooksStuck": {"metergate_webhooks_pending": "500x60"},
    "MetergateWebhookGivenUp": {'metergate_webhooks_total{result="given_up"}': "0x50 1x10"},
    "MetergateWebhookFails": {
        'metergate_webhooks_total{result="failed"}': "0x40 0+1x20",
        'metergate_webhooks_total{result="delivered"}': "0+1x40 40x20",
    },
    "MetergateSpansDropped": {f'metergate_spans_total{{{WHERE},result="dropped"}}': "0+1x60"},
    "MetergateEngineRestarts": {'metergate_engine_restarts_total{provider="local"}': "0x50 0+1x10"},
    "MetergateEngineQueue": {
        'metergate_engine_waiting_sequences{model_name="m",instance="e"}': "4x60",
        'metergate_engine_kv_cache_usage_ratio{model_name="m",instance="e"}': "0.99x60",
    },
    "MetergateEnginePreempts": {'metergate_engine_preemptions_total{model_name="m"}': "0+60x60"},
    "MetergateEngineFailures": {'metergate_engine_failed_sequences_total{model_name="m"}': "0x50 1x10"},
}
"""What each alert is made of: a series, and its values minute by minute (promtool's notation)."""

QUIET: Final = {
    f"metergate_journal_writable{{{WHERE}}}": "1x120",
    f"metergate_journal_unshipped_seconds{{{WHERE}}}": "0x120",
    f"metergate_limit_store_up{{{WHERE}}}": "1x120",
    f"metergate_catalog_stale_seconds{{{WHERE}}}": "0x120",
    f"metergate_dead_letters_total{{{WHERE}}}": "7x120",
    'metergate_requests_total{status="completed",model="m"}': "0+60x120",
    'metergate_requests_total{status="failed",model="m"}': "0+1x120",
    'metergate_attempts_total{provider="p",status="completed"}': "0+60x120",
    'metergate_unpriced_requests_total{model="m",provider="p"}': "3x120",
    'metergate_drift{table="rollup_money"}': "0x120",
    f"metergate_journal_room_bytes{{{WHERE}}}": "250x120",
    f"metergate_journal_bytes{{{WHERE}}}": "750x120",
    f"metergate_start_time_seconds{{{WHERE}}}": "0x50 60x70",
    f"metergate_recorder_restarts_total{{{WHERE}}}": "0x50 1x70",
    f"metergate_worker_restarts_total{{{WHERE}}}": "2x120",
    f'metergate_recorder_failures_total{{{WHERE},reason="connection"}}': "0+1x120",
    'metergate_budget_thresholds_total{scope="team",percent="80"}': "0x50 1x70",
    'metergate_budget_thresholds_total{scope="team",percent="refused"}': "7x120",
    'metergate_price_drift{source="shipped"}': "0x120",
    'metergate_rate_feed_age_seconds{feed="ecb"}': "250000+60x120",
    'metergate_rate_fetches_total{feed="ecb",result="failed"}': "0+1x120",
    'metergate_rate_fetches_total{feed="ecb",result="unchanged"}': "0+1x120",
    'metergate_webhooks_total{result="failed"}': "0+1x120",
    'metergate_webhooks_total{result="delivered"}': "0+1x120",
    f'metergate_answer_cache_total{{{WHERE},result="miss"}}': "0+50x120",
    'metergate_engine_start_time_seconds{model_name="m",instance="e"}': "0x50 60x70",
    "metergate_wallets_low": "0x120",
    f"metergate_audit_chain_broken{{{WHERE}}}": "0x120",
    'metergate_route_circuit{model="m",provider="p",provider_model="pm"}': "0x120",
}
"""An ordinary hour: some requests fail, old counters stand where they stood."""


def test_each_alert_fires_on_its_cause_and_an_ordinary_hour_is_silent(tmp_path: Path) -> None:
    assert FIRES.keys() == alerts().keys()
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": each, "values": values} for each, values in cause.items()],
            # promtool knows no "one or more": the count of what fires, whatever its labels.
            "promql_expr_test": [
                {
                    "expr": f'count(count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}}))',
                    "eval_time": "59m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for name, cause in FIRES.items()
    ]
    tests.append(
        {
            "interval": "1m",
            "input_series": [{"series": each, "values": values} for each, values in QUIET.items()],
            "promql_expr_test": [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": "70m", "exp_samples": []}],
        }
    )
    file = tmp_path / "alerts_test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": tests})
    )
    run = subprocess.run([promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
