"""A real Prometheus server over a running product, with our rules."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.helm.test_rules import RULES


class Prometheus:
    """One server that scrapes and evaluates each second. Skips where there is none."""

    def __init__(
        self, folder: Path, targets: Mapping[str, str], rewrite: Callable[[str], str] = lambda rules: rules
    ) -> None:
        """`targets`: host and port by job. `rewrite` may change the rules' text."""
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed (Debian: apt install prometheus)")
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
            (folder / "rules" / path.name).write_text(
                rewrite(path.read_text().replace("interval: 30s", "interval: 1s"))
            )
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

    def firing(self) -> set[str]:
        found = self.ask("/query", query='ALERTS{alertstate="firing"}')["result"]
        return {each["metric"]["alertname"] for each in found}

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
