"""A bundled engine as a supervised child: started, watched, restarted with backoff, and never left behind.

The child is `python -m local_engine serve MODEL` in a process group of its own, so that a Ctrl-C at the shell reaches the
gateway alone and the engine ends after the last request. It inherits the read end of a pipe whose write end only this process
holds: however this process ends, even by SIGKILL, the pipe closes and the engine exits. The engine picks a free port and
writes it to a file; when its /health answers 200 the supervisor announces the base URL, and takes it back when the child dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

STOP_GRACE_S: Final = 10.0
"""How long an engine without requests may take to end. One that still answers some is given `DRAIN_GRACE_S`."""
DRAIN_GRACE_S: Final = 70.0
HEALTH_EVERY_S: Final = 0.05
FIRST_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
STEADY_S: Final = 60.0
"""An engine that was ready for this long starts anew without a history of failures."""


def engine_command(model: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "local_engine", "serve", model, *arguments]


class EngineSupervisor:
    """Keeps one engine of provider `name` running until `stop`.

    `announce(base_url)` is called with the address when the engine is ready and with None when it is gone; `echo(line)` gets
    the child's output line by line, prefixed; `environ` is added to ours. `restarts` counts starts after the first, and
    `restarted` hears of each;
    `base_url` is None unless ready.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        run_folder: Path,
        announce: Callable[[str | None], None],
        echo: Callable[[str], None],
        environ: Mapping[str, str] | None = None,
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.base_url: str | None = None
        self.restarts = 0
        self.pid: int | None = None
        self._command = list(command)
        self._port_file = run_folder / f"engine-{name}.port"
        self._announce = announce
        self._echo = echo
        self._restarted = restarted
        self._environ = {**os.environ, **(environ or {})}
        self._grace_s = STOP_GRACE_S
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=f"engine {self.name}")

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ends the child (SIGTERM to its group, SIGKILL after `grace_s`) and returns when it is gone.

        The address is taken back at once, so that no new request goes there while running ones finish.
        """
        self._grace_s = grace_s
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _keep_running(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping.is_set():
            started = time.monotonic()
            status = await self._run_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > STEADY_S:
                backoff_s = FIRST_BACKOFF_S
            self._say(f"ended with {_describe(status)}; starting again in {backoff_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
            self.restarts += 1
            self._restarted()

    async def _run_once(self) -> int:
        """One life of the child: its exit status."""
        self._port_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._port_file.unlink(missing_ok=True)
        read_end, write_end = os.pipe()
        try:
            process = await self._spawn(read_end)
            self.pid = process.pid
            return await self._watch(process)
        except OSError as error:
            self._say(f"cannot be started: {error}")
            return 127
        finally:
            os.close(write_end)
            self._set_base_url(None)
            self.pid = None

    async def _spawn(self, parent_fd: int) -> Process:
        """The child, holding `parent_fd`, which this process closes."""
        try:
            return await asyncio.create_subprocess_exec(
                *self._command,
                "--host=127.0.0.1",
                "--port=0",
                f"--port-file={self._port_file}",
                f"--parent-fd={parent_fd}",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                env=self._environ,
                pass_fds=(parent_fd,),
                start_new_session=True,
            )
        finally:
            os.close(parent_fd)

    async def _watch(self, process: Process) -> int:
        assert process.stdout is not None
        output = asyncio.create_task(self._forward(process.stdout))
        ready = asyncio.create_task(self._wait_ready())
        stopping = asyncio.create_task(self._stopping.wait())
        gone = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                await self._end(process, gone)
            return await gone
        finally:
            for task in (ready, stopping):
                task.cancel()
            _signal_group(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(output, 2)
            await asyncio.gather(ready, stopping, return_exceptions=True)

    async def _end(self, process: Process, gone: asyncio.Task[int]) -> None:
        self._set_base_url(None)
        _signal_group(process.pid, signal.SIGTERM)
        await asyncio.wait({gone}, timeout=self._grace_s)
        if not gone.done():
            self._say(f"did not end within {self._grace_s:g} s of SIGTERM; killed")
            _signal_group(process.pid, signal.SIGKILL)

    async def _wait_ready(self) -> None:
        """Polls the port file, then /health, until the engine answers 200; then announces it."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            while True:
                port = self._read_port()
                if port is not None:
                    with contextlib.suppress(httpx.HTTPError):
                        answer = await client.get(f"http://127.0.0.1:{port}/health")
                        if answer.status_code == 200:
                            self._set_base_url(f"http://127.0.0.1:{port}/v1")
                            return
                await asyncio.sleep(HEALTH_EVERY_S)

    def _read_port(self) -> int | None:
        try:
            return int(self._port_file.read_text())
        except (OSError, ValueError):
            return None

    def _set_base_url(self, base_url: str | None) -> None:
        if base_url != self.base_url:
            self.base_url = base_url
            self._announce(base_url)

    async def _forward(self, output: asyncio.StreamReader) -> None:
        """The child's output by whole lines; a carriage return ends a line too, so that progress shows as it happens."""
        pending = b""
        while chunk := await output.read(65536):
            *lines, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._say_line(line)
            if len(pending) > 65536:
                self._say_line(pending)
                pending = b""
        self._say_line(pending)

    def _say_line(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip()
        if text:
            self._say(text)

    def _say(self, text: str) -> None:
        self._echo(f"[engine {self.name}] {text}")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _describe(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
