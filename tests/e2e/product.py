"""The real product as a process: `metergate serve` in a folder of its own, spoken to over HTTP and signals only."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
START_S = 180
ADMIN_KEY = re.compile(r"admin key +(sk-\S+)")
TEAM_KEY = re.compile(r"team key +(sk-mg-\S+)")
ADDRESS = re.compile(r"serves on (http://\S+)")


def until(condition: Callable[[], Any], deadline_s: float, what: str) -> Any:
    """Waits until `condition` answers something true, and returns it."""
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what} within {deadline_s:g} s"
        time.sleep(0.02)


class Product:
    """One `metergate serve`. `output` collects its two streams; `close` stops it and asserts that nothing is left."""

    def __init__(
        self,
        home: Path,
        *,
        config: Path | None = None,
        port: int = 0,
        workers: int = 1,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.home = home
        self.output: list[str] = []
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(port), "--workers", str(workers)]
        if config is not None:
            command += ["--config", str(config)]
        self.started_at_s = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**_environment(), "METERGATE_HOME": str(home), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.output)

    def wait_ready(self) -> Product:
        """Until the banner is whole and says that the engines are up."""

        def ready() -> bool:
            assert self.process.poll() is None, f"metergate serve ended:\n{self.text}"
            return ADDRESS.search(self.text) is not None and "curl" in self.text

        until(ready, START_S, "the banner")
        return self

    def _found(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.search(self.text)
        assert match is not None, f"no {what} in:\n{self.text}"
        return match[1]

    @property
    def url(self) -> str:
        return self._found(ADDRESS, "address")

    @property
    def admin_key(self) -> str:
        return (self.home / "admin-key").read_text().strip()

    @property
    def team_key(self) -> str:
        return self._found(TEAM_KEY, "team key")

    def admin(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.url}/admin/v1",
            headers={"authorization": f"Bearer {self.admin_key}"},
            timeout=30,
            trust_env=False,
        )

    def caller(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {key or self.team_key}"},
            timeout=120,
            trust_env=False,
        )

    def metergate(self, *arguments: str, expect: int = 0) -> str:
        """A verb of the command line against this gateway: its standard output, or its error where it is expected to fail."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *arguments],
            cwd=ROOT,
            env={**_environment(), "METERGATE_HOME": str(self.home), "METERGATE_URL": self.url},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == expect, f"metergate {' '.join(arguments)}: {done.returncode} {done.stderr}"
        return done.stdout if expect == 0 else done.stderr

    def descendants(self) -> list[int]:
        """Process ids of everything this product started, directly or through its children."""
        return descendants(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        """SIGTERM, and everything is gone within the drain."""
        children = self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(90)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        until(lambda: not any(alive(pid) for pid in children), 20, "every child process gone")


@contextlib.contextmanager
def running(
    home: Path,
    *,
    config: Path | None = None,
    workers: int = 1,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Product]:
    product = Product(home, config=config, workers=workers, environ=environ)
    try:
        yield product.wait_ready()
    finally:
        product.close()


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, frontier = [], {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found


@cache
def compiled_kernels() -> dict[str, str]:
    """Where the engine keeps them outside a home; in each test's own home it would compile them anew, for half a minute."""
    from kernels.cpu.compiled import cache_folder

    return {"NUMBA_CACHE_DIR": str(cache_folder())}


def _environment() -> dict[str, str]:
    """Ours without any setting of a Metergate that the person runs, and without proxies."""
    unwanted = ("METERGATE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, **compiled_kernels(), "PYTHONUNBUFFERED": "1"}
