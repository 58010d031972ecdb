"""The process of one rank but the first: it does what rank 0 tells, in rank 0's order, and holds its part of every page.

Started by the crew as `python -m local_engine.parallel.member --channel FD --parent-fd FD`; ends when either of them closes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ..errors import EngineError
from ..heartbeat import BEAT_EVERY_S
from ..messages import FrameBuffer, LoadAdapter, UnloadAdapter, frame
from ..parent_watch import exit_with_parent
from .messages import Broken, Done, Here, Join, Load, Logits, Pulse, Step, ToRank
from .tables import KeptTables

if TYPE_CHECKING:
    from ..runner import ModelRunner
    from .group import Group


PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


class Channel:
    """The rank's end of its socketpair: reads by one thread, writes by any."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._sending = connection, threading.Lock()

    def messages(self) -> Iterator[ToRank]:
        """Until rank 0 is gone."""
        buffer = FrameBuffer(bytearray())
        while data := self._connection.recv(1 << 20):
            for body in buffer.feed(data):
                yield _decoder.decode(body)

    def send(self, message: msgspec.Struct) -> None:
        with self._sending:
            self._connection.sendall(frame(message))


class Heart:
    """Beats while anything goes on in this process, also a long load."""

    def __init__(self, channel: Channel) -> None:
        self.group: Group | None = None
        self._channel = channel

    def start(self) -> None:
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            try:
                self._channel.send(Pulse(self.group.entered if self.group is not None else 0))
            except OSError:
                return  # rank 0 is gone, and so are we in a moment
            time.sleep(BEAT_EVERY_S)


def serve(channel: Channel, heart: Heart) -> None:
    """The whole life of a rank. Raises what ends it."""
    import torch

    from ..runner import ModelRunner, device_of
    from .group import Group, join_store
    from .shard import Shard

    heart.start()
    channel.send(Here())
    messages = channel.messages()
    join = next(messages, None)
    if join is None:
        return
    assert isinstance(join, Join)
    shard, timeout_s = Shard(join.rank, join.config.tensor_parallel_size), join.config.distributed_timeout_s
    group = Group(shard, device_of(join.config, join.rank), join_store(join.port), timeout_s)
    heart.group = group
    runner: ModelRunner | None = None
    tables = KeptTables()
    for message in messages:
        if isinstance(message, Load):
            runner = None
            runner, tables = ModelRunner(message.config, group=group), KeptTables()
            channel.send(Done(None))
            continue
        assert runner is not None, "nothing is loaded"
        if isinstance(message, Step):
            runner.compute(tables.batch(message))
        elif isinstance(message, Logits):
            runner.logits_of(torch.tensor(message.rows, dtype=torch.int64))
        elif isinstance(message, LoadAdapter | UnloadAdapter):
            channel.send(Done(_change_adapters(runner, message)))


def _change_adapters(runner: ModelRunner, message: LoadAdapter | UnloadAdapter) -> str | None:
    try:
        if isinstance(message, LoadAdapter):
            runner.load_adapter(message.name, message.folder)
        elif message.name in runner.adapters:
            runner.unload_adapter(message.name)
    except (EngineError, MemoryError, OSError) as error:
        return str(error)
    return None


def _end_with_rank_0() -> None:
    """Also while this process is stopped, when no thread of it could see the pipe close (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="local_engine.parallel.member")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--parent-fd", type=int, required=True)
    arguments = parser.parse_args()
    exit_with_parent(arguments.parent_fd)
    _end_with_rank_0()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="rank: %(levelname)s %(message)s")
    with socket.socket(fileno=arguments.channel) as connection:
        channel = Channel(connection)
        try:
            serve(channel, Heart(channel))
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except Exception as error:  # whatever torch or the file raises: rank 0 tells everybody
            told = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                channel.send(Broken(told))
            return 1
    return 0


_decoder: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank)

if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # no interpreter teardown: the process group may hold it up
