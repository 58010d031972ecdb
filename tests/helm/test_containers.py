"""The container files: linted, what they copy is there, and what they start is what we ship."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway.settings import load_settings
from tests.helm.charts import CHART

ROOT = CHART.parents[1]
CONTAINERS = ROOT / "helm" / "containers"
FILES = sorted(CONTAINERS.glob("*.Dockerfile"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, path], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_image_copies_what_is_there_and_does_not_run_as_root(path: Path) -> None:
    text = path.read_text()
    for line in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    packages = {each.name for each in ROOT.iterdir() if (each / "__init__.py").exists()} - {"tests", "bench"}
    assert packages <= set(re.findall(r"^COPY (\w+) \w+$", text, re.MULTILINE))
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1] == "10001:10001"
    assert json.loads(re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[-1]) == ["metergate"]


def test_the_gateway_image_installs_no_torch() -> None:
    assert "[compile,postgres,redis]" in (CONTAINERS / "gateway.Dockerfile").read_text()


def test_compose_mounts_what_is_there_and_names_what_it_starts() -> None:
    compose = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (CONTAINERS / source).exists(), f"{name}: {source}"
        assert service.get("depends_on", {}).keys() <= compose["services"].keys()
    environ = {
        key: re.sub(r"\$\{(\w+):\?\}", r"secret-\1", value)
        for key, value in compose["x-gateway"]["environment"].items()
    }
    assert load_settings(CONTAINERS / "metergate.yaml", environ).models


def test_prometheus_scrapes_the_gateway_and_reads_the_chart_s_rules() -> None:
    prometheus = yaml.safe_load((CONTAINERS / "prometheus.yaml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"] == [{"targets": ["gateway:8000"]}]
    assert list((CONTAINERS / "../metergate/files/rules").glob("*.yaml"))
