"""An answer that is made in pieces, whose reader may leave at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, TypeVar

_T = TypeVar("_T")
_ENDING: Final[set[asyncio.Task[None]]] = set()


async def unbroken(pieces: AsyncGenerator[_T, None]) -> AsyncIterator[_T]:
    """The same pieces. Who leaves is heard between two of them: a query that is broken off costs a connection of the database,
    and a thread's work cannot be broken off at all."""
    making: asyncio.Task[_T] | None = None
    try:
        while True:
            making = asyncio.create_task(_next(pieces), name="a piece of an answer")
            try:
                piece = await asyncio.shield(making)
            except StopAsyncIteration:
                return
            yield piece
    finally:
        ending = asyncio.create_task(_end(making, pieces), name="the end of an answer")
        _ENDING.add(ending)
        ending.add_done_callback(_ENDING.discard)


async def _next(pieces: AsyncGenerator[_T, None]) -> _T:
    return await anext(pieces)


async def _end(making: asyncio.Task[_T] | None, pieces: AsyncGenerator[_T, None]) -> None:
    if making is not None:
        await asyncio.wait([making])
        if not making.cancelled():
            making.exception()  # nobody is left who would hear of it
    await pieces.aclose()
