"""Starts the server of tiny_server.py and ends it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from local_engine.config import EngineConfig, ServerConfig

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30.0


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {deadline_s} s in vain for {what}"
        time.sleep(0.01)


class RunningEngine:
    """A server process with its core. `parrot`: answers repeat the prompt; else the oracle of tiny.py."""

    deadline_s = DEADLINE_S

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        *,
        parrot: bool = True,
        step_s: float = 0.0,
        core: str = "tests.local_engine.tiny",
        engine: dict[str, object] | None = None,
        server: dict[str, object] | None = None,
    ) -> None:
        self.port_file = scratch / "port"
        self.log_path = scratch / "log"
        self._read_fd, self.parent_fd = os.pipe()
        values: dict[str, object] = {"num_blocks_override": 64, "max_model_len": 512, "device": "cpu"}
        values["dtype"] = "float32" if parrot else "bfloat16"
        config = EngineConfig(str(folder), **{**values, **(engine or {})})  # type: ignore[arg-type]
        settings = ServerConfig(
            port=0,
            port_file=str(self.port_file),
            parent_fd=self._read_fd,
            **(server or {}),  # type: ignore[arg-type]
        )
        self._arguments = [msgspec.json.encode(config).decode(), msgspec.json.encode(settings).decode(), str(folder)]
        self._environment = {**os.environ, "TINY_STEP_S": str(step_s), "TINY_CORE": core, "PYTHONPATH": str(ROOT)}

    def __enter__(self) -> Self:
        self.start()
        wait_for(self.is_ready, f"the engine to be ready; its log: {self.log_path}", self.deadline_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.local_engine.server.tiny_server", *self._arguments]

    def start(self) -> None:
        with self.log_path.open("wb") as output:
            self.process = subprocess.Popen(
                self.command(),
                pass_fds=(self._read_fd,),
                stderr=output,
                env=self._environment,
                cwd=ROOT,
            )
        os.close(self._read_fd)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.parent_fd >= 0:
            os.close(self.parent_fd)
            self.parent_fd = -1

    def drop_parent(self) -> None:
        os.close(self.parent_fd)
        self.parent_fd = -1

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{int(self.port_file.read_text())}"

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return httpx.get(f"{self.url}/health", trust_env=False).status_code == 200
        except (OSError, ValueError, httpx.TransportError):
            return False

    def core(self) -> int:
        """The core's process id (Linux)."""
        pid = self.process.pid
        (core,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(core)

    def metric(self, name: str) -> float:
        """The value of a series without labels of its own, summed over the rest."""
        lines = httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
