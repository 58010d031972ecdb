"""Processes under measurement: started by command, waited for by port, measured as a tree, ended by pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(pid: int) -> list[int]:
    """`pid` and all its living descendants."""
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            try:
                queue += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def split_cores() -> tuple[set[int], set[int]]:
    """One core for the gateway under test, the others for all else; where there is only one, everything shares it."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


def pin(pid: int, cores: set[int]) -> None:
    """The tree runs on these cores alone, with whatever it starts later."""
    for member in tree(pid):
        for thread in Path(f"/proc/{member}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree so far, reaped children included."""
    ticks = 0
    for member in tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(value) for value in fields[11:15])
    return ticks * TICK_S


def memory_mb(pid: int) -> float:
    """Proportional resident memory of the tree in MB (shared pages counted once)."""
    return sum(own_memory_mb(member) for member in tree(pid))


def own_memory_mb(pid: int) -> float:
    """The same of one process; 0 once it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


class Process:
    """One server under test. `ready_s` is the time from its start until its port answered."""

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], folder: Path, port: int) -> None:
        self.name = name
        self.port = port
        self.log = folder / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")} | dict(env)
        started = time.perf_counter()
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        if port:
            self._wait()
        self.ready_s = time.perf_counter() - started

    @property
    def pid(self) -> int:
        return self.child.pid

    def _wait(self, deadline_s: float = 120) -> None:
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise RuntimeError(f"{self.name} ended at once: {self.tail()}")
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"{self.name} did not listen on {self.port}: {self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(15)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait(5)
