"""What a gateway and its recorder's process say to each other: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from gateway.logs import Format
from gateway.metering.progress import Progress
from gateway.metrics_sum import Report
from gateway.settings import JournalSettings
from gateway.telemetry.target import Target

LENGTH_BYTES: Final = 4


class Job(Struct, frozen=True, tag=True):
    """To the recorder, first of all: the journals under `folder`, of which `own` is the gateway's that lives."""

    folder: str
    own: str
    database_url: str
    journal: JournalSettings
    log_level: int
    log_format: Format
    telemetry: Target | None = None


class Ask(Struct, frozen=True, tag=True):
    """To the recorder: send a `News` now."""


class Finish(Struct, frozen=True, tag=True):
    """To the recorder: the journal is stopped; ship what it holds, for `drain_s` at most, and end."""

    drain_s: float


class News(Struct, frozen=True, tag=True):
    """To the gateway. `finished` is set in the last one: whether everything was shipped."""

    progress: Progress
    report: Report
    finished: bool | None = None


Order = Job | Ask | Finish
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode


class Link(Generic[_T]):
    """One end. `receive` returns messages of the type that `decoder` knows."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.msgpack.Decoder[_T]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    def send(self, message: Order | News) -> None:
        payload = _encode(message)
        self._writer.write(len(payload).to_bytes(LENGTH_BYTES, "big") + payload)

    async def receive(self) -> _T | None:
        """The next message; None when the other end is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            return self._decoder.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def drain(self) -> None:
        """Returns when everything sent has left, or the other end has."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass

    def close(self) -> None:
        self._writer.close()


async def gateway_end(end: socket.socket) -> Link[News]:
    return Link(*await asyncio.open_connection(sock=end), msgspec.msgpack.Decoder(News))


async def recorder_end(end: socket.socket) -> Link[Order]:
    return Link(*await asyncio.open_connection(sock=end), msgspec.msgpack.Decoder(Order))
