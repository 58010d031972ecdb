"""A child process that speaks with this one over a socket pair: started, listened to, killed when silent, never left behind.

Silence is counted in our own beats, not by the clock: where the whole machine stood still, both have missed the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from gateway.process_link import Link, open_link

log = logging.getLogger(__name__)

BEAT_S: Final = 5.0
SILENT_BEATS: Final = 6
"""So many beats without a word, and it counts as hung."""
START_BEATS: Final = 24
"""Before its first word: an interpreter starts slowly on a machine that is busy."""
LATE: Final = 2
"""A beat that took so many times as long as it should says that we slept ourselves: the count begins anew."""

_News = TypeVar("_News")


@dataclass(slots=True)
class Silence:
    """How long a child has said nothing, in beats of ours."""

    beat_s: float
    beats: int = 0
    patience: int = START_BEATS

    def too_long(self, took_s: float, *, spoke: bool) -> bool:
        """After a beat that took `took_s`, in which the child spoke or not."""
        if spoke:
            self.beats, self.patience = 0, SILENT_BEATS
        elif took_s > LATE * self.beat_s:
            self.beats = 0
        else:
            self.beats += 1
        return self.beats >= self.patience


class Child(Generic[_News]):
    """One life of a child, made by `child`."""

    def __init__(self, name: str, process: Process, link: Link[_News]) -> None:
        self.link = link
        self._name = name
        self._process = process
        self._spoke = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def news(self) -> AsyncIterator[_News]:
        """What it says, until its end of the link closes."""
        while (said := await self.link.receive()) is not None:
            self._spoke = True
            yield said

    async def ended(self) -> int:
        """Its exit status."""
        return await self._process.wait()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill_when_silent(self, ask: Struct, beat_s: float) -> None:
        """Ends one that runs and does nothing: stopped by a debugger, or hung. `ask` is what it has to answer."""
        clock, silence = asyncio.get_running_loop(), Silence(beat_s)
        while True:
            self._spoke, began_s = False, clock.time()
            await asyncio.sleep(beat_s)
            if silence.too_long(clock.time() - began_s, spoke=self._spoke):
                break
            if silence.beats:
                self.link.send(ask)
        log.error("%s has not answered for %g s; replacing it", self._name, silence.beats * beat_s)
        self._process.kill()

    async def end(self) -> None:
        self.link.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def child(
    name: str,
    command: Sequence[str],
    decoder: msgspec.msgpack.Decoder[_News],
    ask: Struct,
    *,
    beat_s: float = BEAT_S,
    descriptors: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Child[_News]]:
    """`command` with the number of its socket as its last argument, for the time of the block. It inherits `descriptors`, and has
    to answer `ask` once in `SILENT_BEATS` times `beat_s`. Raises `OSError` when it cannot be started."""
    ours, its = socket.socketpair()
    try:
        with its:
            number = its.fileno()
            process = await asyncio.create_subprocess_exec(
                *command, str(number), stdin=DEVNULL, pass_fds=(number, *descriptors), env=environ
            )
    except BaseException:
        ours.close()
        raise
    started = Child(name, process, await open_link(ours, decoder))
    beating = asyncio.create_task(started.kill_when_silent(ask, beat_s), name=f"{name}'s heartbeat")
    try:
        yield started
    finally:
        beating.cancel()
        await started.end()
