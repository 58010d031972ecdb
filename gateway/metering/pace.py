"""How the recorder makes room for others: short transactions, and whoever waits for SQLite's one writer's place goes first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.writers import anybody_waits

MOST_ROWS: Final = 1000
FEWEST_ROWS: Final = 250
"""A transaction costs as much as some forty rows: fewer than this would make a slow machine slower."""
LONG_S: Final = 0.1
PATIENCE_S: Final = 0.25
"""So long the recorder lets others go first: then it is its turn, however many wait."""
_LOOK_S: Final = 0.002


class Pace:
    """How many rows go into one transaction: as many as are written in a tenth of a second, for others wait as long.

    Grows and shrinks by halves, so that a slow moment costs little and is soon forgotten.
    """

    def __init__(self) -> None:
        self.rows = MOST_ROWS

    def took(self, rows: int, seconds: float) -> None:
        if seconds > LONG_S and rows > self.rows // 2:
            self.rows = max(self.rows // 2, FEWEST_ROWS)
        elif seconds < LONG_S / 3:
            self.rows = min(self.rows * 2, MOST_ROWS)


@asynccontextmanager
async def begin_last(engine: AsyncEngine, patience_s: float = PATIENCE_S) -> AsyncIterator[AsyncConnection]:
    """A writing transaction that lets whoever waits go first, for `patience_s` at most."""
    if engine.dialect.name == "sqlite":
        assert engine.url.database is not None
        patient_until_s = time.monotonic() + patience_s
        while anybody_waits(engine.url.database) and time.monotonic() < patient_until_s:
            await asyncio.sleep(_LOOK_S)
    async with engine.begin() as connection:
        yield connection
