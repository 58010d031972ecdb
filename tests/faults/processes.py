"""Starting and killing the processes of a fault run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gateway.metering.position import read_position
from gateway.metering.segments import process_folders
from tests.faults.law import Witness

ROOT = Path(__file__).parents[2]


def descendants(pid: int, *words: str) -> list[int]:
    """The processes below `pid` whose command line has all of `words` as arguments."""
    parents: dict[int, int] = {}
    commands: dict[int, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            each = int(folder.name)
            parents[each] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[each] = (folder / "cmdline").read_text().split("\0")
    below = {pid}
    for _ in range(len(parents)):
        more = {each for each, parent in parents.items() if parent in below} - below
        if not more:
            break
        below |= more
    return sorted(each for each in below - {pid} if all(word in commands[each] for word in words))


class Writer:
    """One writing process; `kill` ends it by SIGKILL and returns what it had said."""

    def __init__(self, journal: Path, said: Path, manner: str = "honest") -> None:
        self._said = said
        with said.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.writer", str(journal), manner], stdout=output, cwd=ROOT
            )

    def wait_until_speaking(self, deadline_s: float = 30.0) -> None:
        until = time.monotonic() + deadline_s
        while self._said.stat().st_size == 0:
            assert self._process.poll() is None, "the writer died by itself"
            assert time.monotonic() < until, "the writer does not start"
            time.sleep(0.002)

    def kill(self) -> Witness:
        self._process.kill()
        return self.wait()

    def wait(self) -> Witness:
        """For a writer that kills itself."""
        assert self._process.wait(timeout=60) == -signal.SIGKILL
        return Witness.of(self._said.read_bytes())


class RecorderProcess:
    """One recorder process."""

    def __init__(self, journal: Path, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.recorder", str(journal), url], stdin=subprocess.PIPE, cwd=ROOT
        )

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def peak_bytes(self) -> int:
        """The most memory that it ever held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    def _close(self) -> None:
        self._process.wait(timeout=60)
        if self._process.stdin is not None:
            self._process.stdin.close()


def all_shipped(journal: Path) -> bool:
    """Whether every dead process's journal is in the database to its end."""
    return all(read_position(folder).complete_us is not None for folder in process_folders(journal))
