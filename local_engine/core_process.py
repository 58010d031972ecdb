"""The core's own process: one single-threaded loop between a socketpair and the model.

Started by the HTTP process as `python -m local_engine.core_process --channel FD --parent-fd FD`. It reads the socket
between steps, sends one frame per step, and ends when its parent's pipe closes, even in the middle of a step.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from .config import EngineConfig
from .engine_core import EngineCore
from .errors import EngineError, RanksLost
from .heartbeat import Pulse
from .messages import Beat, Failed, FrameBuffer, Progress, Ready, Start, StepDone, ToCore, frame
from .parent_watch import exit_with_parent
from .runner_protocol import Runner
from .weights.model_store import resolve_model

if TYPE_CHECKING:
    from .grammars import GrammarCompiler
    from .tokenizer import Tokenizer

log = logging.getLogger(__name__)

IDLE_CHECK_S = 0.1
"""Idle for so long, the core checks its pages once."""

RunnerFactory = Callable[[EngineConfig, "Report"], Runner]


class Channel:
    """The core's end of the socketpair: non-blocking reads by one thread, blocking writes by any; any may wake the reader."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._buffer = FrameBuffer(bytearray())
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._poll = select.poll()
        self._bell, self._ringer = socket.socketpair()
        self._ringer.setblocking(False)
        for end in (connection, self._bell):
            self._poll.register(end, select.POLLIN)

    def receive(self, wait_s: float | None) -> list[ToCore]:
        """Whatever has arrived, waiting at most `wait_s` (None: for ever) for the first of it, or for `wake`. EOFError at the
        end."""
        messages: list[ToCore] = []
        timeout_ms = None if wait_s is None else wait_s * 1_000
        while ready := dict(self._poll.poll(timeout_ms)):
            if self._connection.fileno() in ready:
                data = self._connection.recv(1 << 20)
                if not data:
                    raise EOFError
                messages += [self._decoder.decode(body) for body in self._buffer.feed(data)]
            if woken := self._bell.fileno() in ready:
                self._bell.recv(1 << 10)
            timeout_ms = 0 if messages or woken else timeout_ms
        return messages

    def close(self) -> None:
        for end in (self._bell, self._ringer):
            end.close()

    def wake(self) -> None:
        """Ends a `receive` that waits. A full bell rings already."""
        with contextlib.suppress(BlockingIOError):
            self._ringer.send(b"!")

    def send(self, message: msgspec.Struct) -> None:
        data = frame(message)
        with self._sending:
            self._connection.sendall(data)


class Report:
    """What a runner tells while it loads, and, by any thread, when it cannot go on."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __call__(self, text: str) -> None:
        self._channel.send(Progress(text))

    def lost(self, reason: str) -> None:
        """Does not return: whoever computes may be stuck in what is lost."""
        log.error("%s", reason)
        with contextlib.suppress(OSError):
            self._channel.send(Failed(reason))
        sys.stderr.flush()
        os._exit(1)


def run(channel: Channel, make_runner: RunnerFactory) -> int:
    """The whole life of the core. Returns its exit status."""
    (start,) = channel.receive(None)
    assert isinstance(start, Start)
    began, report = time.monotonic(), Report(channel)
    try:
        runner = make_runner(start.config, report)
        core = EngineCore(
            start.config,
            runner,
            adapt_steps=_on_cpu(start.config),
            grammars=_grammars(start.config, runner, channel.wake),
        )
    except EngineError as error:
        channel.send(Failed(str(error)))
        return 1
    except MemoryError:
        channel.send(Failed("out of memory while loading: lower --max-model-len or --kv-cache-memory-bytes"))
        return 1
    gc.collect()
    gc.freeze()
    load_us = int((time.monotonic() - began) * 1e6)
    channel.send(Ready(runner.num_blocks, start.config.block_size, runner.vocab_size, core.max_model_len, load_us))
    pulse = Pulse(lambda step_ms: channel.send(Beat(step_ms)))
    pulse.start()
    try:
        _serve(channel, core, pulse)
    except RanksLost as error:
        report.lost(str(error))
    return 0


def _serve(channel: Channel, core: EngineCore, pulse: Pulse) -> None:
    checked = False
    while True:
        wait_s = 0.0 if core.has_work else None if checked else IDLE_CHECK_S
        messages = channel.receive(wait_s)
        for message in messages:
            assert not isinstance(message, Start), "started once"
            answer = core.handle(message)
            if answer is not None:
                channel.send(answer)
        if core.has_work:
            checked = False
            pulse.step_begins()
            updates = core.step()
            pulse.step_ends()
            channel.send(StepDone(updates, core.stats()))
        elif not messages and not checked:
            core.check_integrity()
            checked = True


def _grammars(config: EngineConfig, runner: Runner, compiled: Callable[[], None]) -> GrammarCompiler | None:
    """None where llguidance is not installed; the HTTP process then refuses structured output."""
    try:
        from .grammars import GrammarCompiler
    except ImportError:
        return None

    def load() -> Tokenizer:
        from .tokenizer import load_tokenizer

        return load_tokenizer(resolve_model(config.model))

    return GrammarCompiler(load, runner.vocab_size, compiled)


def _on_cpu(config: EngineConfig) -> bool:
    if config.device != "auto":
        return config.device == "cpu"
    import torch

    return not torch.cuda.is_available()


def load_model_runner(config: EngineConfig, report: Report) -> Runner:
    if config.tensor_parallel_size > 1:
        from .parallel.leader import lead

        return lead(config, report, report.lost)
    from .runner import ModelRunner

    return ModelRunner(config, progress=report)


def main(make_runner: RunnerFactory = load_model_runner) -> int:
    parser = argparse.ArgumentParser(prog="local_engine.core_process")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    arguments = parser.parse_args()
    exit_with_parent(arguments.parent_fd)
    # A terminal's ^C and a group-wide SIGTERM are for the HTTP process: it drains, and then our pipe closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="core: %(levelname)s %(message)s")
    with (
        contextlib.suppress(EOFError, BrokenPipeError),
        socket.socket(fileno=arguments.channel) as connection,
        contextlib.closing(Channel(connection)) as channel,
    ):
        return run(channel, make_runner)
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # no interpreter teardown: numba and torch threads may hold it up
