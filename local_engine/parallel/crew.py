"""Rank 0's hold on the other ranks: their processes, what it tells them, and the watch over them.

A rank that ends, or is silent for as long as an exchange may take, is the end of the engine: its part of every page is gone.
Whoever waits for it must not wait for ever, so a thread of its own watches, while the step may be stuck in an exchange.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from ..config import EngineConfig
from ..errors import RanksLost
from ..exit_words import exit_words
from ..heartbeat import BEAT_EVERY_S, SILENT_AFTER_S, CoreWatch
from ..messages import FrameBuffer, frame
from .group import open_store
from .messages import Broken, Done, FromRank, Here, Join, Pulse, ToRank

COMMAND = (sys.executable, "-m", "local_engine.parallel.member")
ENDING_S = 2.0
"""An exchange that fails is looked into for so long: the rank that ended it takes a moment to end itself."""
BROKEN_S = 0.2
"""The same for a rank that tells of a failed exchange."""
STARTING_S = 300.0
"""Importing torch from a cold disk."""


class Member:
    """One other rank, from the outside."""

    def __init__(self, rank: int, silence_s: float) -> None:
        ours, theirs = socket.socketpair()
        read_fd, self._watch_fd = os.pipe()
        with theirs:
            self.process = subprocess.Popen(
                [*COMMAND, "--channel", str(theirs.fileno()), "--parent-fd", str(read_fd)],
                pass_fds=(theirs.fileno(), read_fd),
                stdin=subprocess.DEVNULL,
            )
        os.close(read_fd)
        self.rank, self.connection = rank, ours
        self.here = False
        self.entered = 0
        self.watch = CoreWatch(silence_s)
        self._buffer = FrameBuffer(bytearray())

    def read(self) -> list[FromRank]:
        """What has arrived. Raises EOFError at the end."""
        try:
            data = self.connection.recv(1 << 16)
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return [_decoder.decode(body) for body in self._buffer.feed(data)]

    def death(self) -> str:
        """How it ended, or that it did not."""
        try:
            status = self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return f"Rank {self.rank} of the engine closed its socket"
        return f"Rank {self.rank} of the engine died ({exit_words(status)})"

    @property
    def was_killed(self) -> bool:
        return (self.process.poll() or 0) < 0

    @property
    def silence(self) -> str:
        return f"Rank {self.rank} of the engine has not answered for {self.watch.silent_s:.0f} s and was ended"

    def close(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        os.close(self._watch_fd)


class Crew:
    """Ranks 1.. of `config.tensor_parallel_size`, started by this. `lost` is called, by any thread and once, when they cannot go
    on; it may end the process. One thread calls the other methods."""

    def __init__(self, config: EngineConfig, lost: Callable[[str], None]) -> None:
        self._lost, self._timeout_s = lost, config.distributed_timeout_s
        self._reason: str | None = None
        self._losing = threading.Lock()
        self._answers: queue.Queue[tuple[int, Here | Done] | None] = queue.Queue()
        self.store, port = open_store(config.tensor_parallel_size)
        self._members = [Member(rank, config.distributed_timeout_s) for rank in range(1, config.tensor_parallel_size)]
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="rank-watch", daemon=True)
        self._watcher.start()
        self.wait()
        for member in self._members:
            self._send(member, Join(member.rank, port, config))

    @property
    def pids(self) -> list[int]:
        """Of ranks 1.. in their order."""
        return [member.process.pid for member in self._members]

    def tell(self, message: ToRank) -> None:
        """Raises `RanksLost`."""
        for member in self._members:
            self._send(member, message)

    def wait(self) -> str | None:
        """For an answer of each of them; the first error among them. Raises `RanksLost`."""
        errors = []
        for _ in self._members:
            answer = self._answers.get()
            if answer is None:
                raise RanksLost(self._reason or "")
            if isinstance(answer[1], Done) and answer[1].error is not None:
                errors.append(f"rank {answer[0]}: {answer[1].error}")
        return errors[0] if errors else None

    def why(self, error: Exception, entered: int) -> RanksLost:
        """What an exchange that raised `error` in rank 0 was about; `entered`: rank 0's own count."""
        time.sleep(ENDING_S)  # whoever ended it is being noticed, or its last pulse is on its way
        told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        behind = [f"rank {member.rank}" for member in self._members if member.entered < entered]
        self._lose(self._culprit(f"The engine's ranks lost step, {' and '.join(behind) or 'rank 0'} first ({told})"))
        assert self._reason is not None
        return RanksLost(self._reason)

    def close(self) -> None:
        """Ends them at once."""
        self._closing.set()
        self._watcher.join()
        for member in self._members:
            member.close()

    def _send(self, member: Member, message: ToRank) -> None:
        try:
            member.connection.sendall(frame(message))
        except OSError as error:
            raise self.why(error, sys.maxsize) from error

    def _lose(self, reason: str) -> None:
        with self._losing:
            if self._reason is not None:
                return
            self._reason = reason
        for member in self._members:
            member.process.kill()  # one that stands still would not see our end
        self._answers.put(None)
        self._lost(reason)

    def _culprit(self, otherwise: str) -> str:
        """One rank's end makes the others' exchanges fail: that rank is named, and not who told of it first."""
        for member in self._members:
            if member.was_killed:
                return member.death()
        for member in self._members:
            if member.watch.silent_s >= SILENT_AFTER_S:
                return member.silence
        return otherwise

    def _watch(self) -> None:
        poll = select.poll()
        by_fd = {member.connection.fileno(): member for member in self._members}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        next_tick_s = time.monotonic() + BEAT_EVERY_S
        while not self._closing.is_set():
            for fd, _ in poll.poll(max(0.0, next_tick_s - time.monotonic()) * 1_000):
                member = by_fd[fd]
                try:
                    for message in member.read():
                        self._hear(member, message)
                except EOFError:
                    poll.unregister(fd)
                    if not self._closing.is_set():
                        self._lose(self._culprit(member.death()))
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + BEAT_EVERY_S
                self._tick()

    def _tick(self) -> None:
        for member in self._members:
            member.watch.tick()
            if member.watch.silent_s >= (self._timeout_s if member.here else STARTING_S):
                self._lose(member.silence)

    def _hear(self, member: Member, message: FromRank) -> None:
        member.watch.heard()
        if isinstance(message, Pulse):
            member.entered = message.entered
        elif isinstance(message, Broken):
            time.sleep(BROKEN_S)
            self._lose(self._culprit(f"Rank {member.rank} of the engine failed: {message.message}"))
        else:
            member.here = True
            self._answers.put((member.rank, message))


_decoder: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)
