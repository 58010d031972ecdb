"""The HTTP process's hold on one core process: starts it, sends it frames, hears its news, gives it up when it stands still."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from .config import EngineConfig
from .errors import EngineDead, ModelError
from .exit_words import exit_words
from .heartbeat import BEAT_EVERY_S, CoreWatch
from .messages import (
    HEADER,
    AdapterDone,
    Beat,
    Failed,
    FromCore,
    LoadAdapter,
    Progress,
    Ready,
    Start,
    Stats,
    StepDone,
    UnloadAdapter,
    frame,
)

log = logging.getLogger(__name__)

CORE_COMMAND = (sys.executable, "-m", "local_engine.core_process")
CORE_EXIT_S = 5
_POLL_S = 0.01


class CoreLink:
    """`hear` is called with every step's news; `died` once, with the reason, when the core is gone or given up. All on one event
    loop."""

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str],
        timeout_s: float,
        hear: Callable[[StepDone], None],
        died: Callable[[str], None],
    ) -> None:
        self.watch = CoreWatch(timeout_s)
        self.stats = Stats()
        self.live = 0
        """Sequences in it."""
        self._config, self._command = config, tuple(command)
        self._hear, self._died = hear, died
        self._dead = False
        self._core: subprocess.Popen[bytes] | None = None
        self._watch_fd: int | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._adapter_answers: deque[asyncio.Future[str | None]] = deque()

    async def start(self, on_progress: Callable[[str], None]) -> Ready:
        """Starts the core and waits until the model is loaded. Raises `ModelError` with the core's words if it is not."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._spawn())
        self.send(Start(self._config))
        try:
            ready = await self._await_ready(on_progress)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ModelError(
                f"the engine core ended while loading ({self._exit_words()}); see its lines above"
            ) from None
        self._tasks = [
            asyncio.create_task(self._read_steps(), name="engine-core-reader"),
            asyncio.create_task(self._watch_core(), name="engine-core-watch"),
        ]
        return ready

    def send(self, message: msgspec.Struct) -> None:
        self.write(frame(message))

    def write(self, frames: bytes) -> None:
        if self._writer is not None and not self._dead:
            self._writer.write(frames)

    async def change_adapters(self, message: LoadAdapter | UnloadAdapter) -> str | None:
        """None when it is done, or why not. Raises `EngineDead`."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._adapter_answers.append(answer)
        self.send(message)
        return await answer

    async def stop(self) -> None:
        """Ends the core and waits for it."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._writer is not None:
            self._writer.close()
        if self._watch_fd is not None:
            os.close(self._watch_fd)
            self._watch_fd = None
        if self._core is not None:
            await _reaped(self._core)

    def fail_answers(self, reason: str) -> None:
        """To whoever waits for an adapter."""
        while self._adapter_answers:
            answer = self._adapter_answers.popleft()
            if not answer.done():
                answer.set_exception(EngineDead(reason))

    def _spawn(self) -> socket.socket:
        """Starts the core; returns our end of the socketpair."""
        ours, theirs = socket.socketpair()
        read_fd, self._watch_fd = os.pipe()
        with theirs:
            self._core = subprocess.Popen(
                [*self._command, "--channel", str(theirs.fileno()), "--parent-fd", str(read_fd)],
                pass_fds=(theirs.fileno(), read_fd),
                stdin=subprocess.DEVNULL,
            )
        os.close(read_fd)
        return ours

    async def _await_ready(self, on_progress: Callable[[str], None]) -> Ready:
        while True:
            message = await self._receive()
            if isinstance(message, Progress):
                on_progress(message.text)
            elif isinstance(message, Failed):
                raise ModelError(message.message)
            elif isinstance(message, Ready):
                self.stats = Stats(free_blocks=message.num_blocks, num_blocks=message.num_blocks)
                return message

    async def _receive(self) -> FromCore:
        assert self._reader is not None
        (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        return _decoder.decode(await self._reader.readexactly(length))

    async def _read_steps(self) -> None:
        try:
            while True:
                message = await self._receive()
                if isinstance(message, Beat):
                    self.watch.heard(message.step_ms)
                elif isinstance(message, AdapterDone):
                    answer = self._adapter_answers.popleft()
                    if not answer.done():  # whoever asked may have gone
                        answer.set_result(message.error)
                elif isinstance(message, Failed):
                    self._die(f"{message.message}.")
                    return
                else:
                    assert isinstance(message, StepDone)
                    self.watch.heard()
                    self.stats = message.stats
                    self._hear(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._die(f"The engine core died ({self._exit_words()}).")

    async def _watch_core(self) -> None:
        """Gives a core up that has stopped answering, so that nobody waits for it for ever."""
        assert self._core is not None
        while True:
            await asyncio.sleep(BEAT_EVERY_S)
            if self._dead:
                return
            self.watch.tick()
            if self.watch.lost is not None:
                self._die(self.watch.lost)
                self._core.kill()

    def _die(self, reason: str) -> None:
        if not self._dead:
            self._dead = True
            self._died(reason)

    def _exit_words(self) -> str:
        assert self._core is not None
        try:
            status = self._core.wait(1)
        except subprocess.TimeoutExpired:
            return "its socket closed"
        return exit_words(status)


async def _reaped(core: subprocess.Popen[bytes]) -> None:
    """Waits without a thread: none can be started any more when an `LLM` that nobody closed ends with its interpreter."""
    try:
        async with asyncio.timeout(CORE_EXIT_S):
            while core.poll() is None:
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        core.kill()
        core.wait()


_decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
