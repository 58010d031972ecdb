"""Answers that are made in pieces: whoever leaves, no piece is broken off, and what made them is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio
import pytest

from gateway.admin.unbroken import unbroken


class Making:
    """Pieces that take some turns of the loop each, and what became of them."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.begun = self.made = 0
        self.closed = asyncio.Event()

    async def pieces(self) -> AsyncGenerator[int, None]:
        try:
            while self.begun < 5:
                self.begun += 1
                for _ in range(self.turns):
                    await asyncio.sleep(0)
                self.made += 1
                yield self.made
        finally:
            self.closed.set()


@pytest.mark.parametrize("turns", [0, 1, 4])
@pytest.mark.parametrize("leaves_after", range(12))
async def test_whoever_leaves_at_any_moment_breaks_no_piece_off(turns: int, leaves_after: int) -> None:
    making = Making(turns)
    read: list[int] = []

    async def reading() -> None:
        async for piece in unbroken(making.pieces()):
            read.append(piece)
            await asyncio.sleep(0)

    async with anyio.create_task_group() as group:  # as Litestar streams, which cancels again and again
        group.start_soon(reading)
        for _ in range(1 + leaves_after):
            await asyncio.sleep(0)
        group.cancel_scope.cancel()
    if making.begun:
        async with asyncio.timeout(10):
            await making.closed.wait()
    assert making.made == making.begun
    assert read == list(range(1, len(read) + 1))
    assert making.made - len(read) in (0, 1), "nobody's pieces are not made"


async def test_all_pieces_come_and_a_failure_is_the_readers() -> None:
    making = Making(2)
    assert [piece async for piece in unbroken(making.pieces())] == [1, 2, 3, 4, 5]
    await making.closed.wait()

    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise ArithmeticError

    pieces = unbroken(failing())
    assert await anext(pieces) == 1
    with pytest.raises(ArithmeticError):
        await anext(pieces)
