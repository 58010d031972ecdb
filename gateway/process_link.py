"""Messages between a process and a child of its own: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

LENGTH_BYTES: Final = 4

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

    def send(self, message: Struct) -> None:
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


async def open_link(end: socket.socket, decoder: msgspec.msgpack.Decoder[_T]) -> Link[_T]:
    """`end` is ours of the pair, and the link's from now on."""
    return Link(*await asyncio.open_connection(sock=end), decoder)
