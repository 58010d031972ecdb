"""Law: whatever goes wrong with telemetry, a committed row is no worse for it; what cannot be sent is dropped and counted."""

from __future__ import annotations

import logging

import pytest

from billing.usage import Usage
from gateway.metrics import Metrics
from gateway.telemetry import exporter as module
from gateway.telemetry.exporter import MOST_WAITING, Exporter
from gateway.telemetry.target import Target
from tests.billing.helpers import rated_record


def make(metrics: Metrics) -> Exporter:
    return Exporter(Target("http://127.0.0.1:9", {}, "metergate", 1.0), metrics, "i")


def counted(metrics: Metrics, result: str) -> float:
    line = f'metergate_spans_total{{result="{result}"}} '
    return sum(
        float(each.removeprefix(line)) for each in metrics.render().decode().splitlines() if each.startswith(line)
    )


async def test_a_row_that_cannot_be_told_of_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    exporter = make(Metrics())
    with caplog.at_level(logging.ERROR):
        exporter.tell([(None, "")])  # type: ignore[list-item]  # what no row is
    assert "could not be told of" in caplog.text
    await exporter.close(0.0)


async def test_what_a_receiver_that_is_away_does_not_take_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)
    metrics = Metrics()
    exporter = make(metrics)
    row = rated_record(Usage(input=9, output=5))
    exporter.tell([(row, "")] * 3)
    await exporter.flush()
    assert counted(metrics, "dropped") == 3 * (1 + len(row.attempts))
    exporter.tell([(row, "")] * MOST_WAITING)
    assert counted(metrics, "dropped") > 3 * (1 + len(row.attempts)), "memory is bounded"
    await exporter.close(0.0)
