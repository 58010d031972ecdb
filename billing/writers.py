"""Who writes next on SQLite, which has one writer's place and no queue for it.

Whoever waits for the place holds a shared lock on a file beside the database for as long as it waits; the lock goes with
the process. A writer that never rests, the recorder, looks at the file before each transaction and lets the others go first.
It works between threads and between processes, and costs nobody anything while nobody waits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

PATIENCE_MS: Final = 250
"""So long the recorder lets others go first: then it is its turn, however many wait."""
_LOOK_MS: Final = 2
_TRIES: Final = 100


@contextmanager
def waiting(database: str) -> Iterator[None]:
    """Seen as waiting for the writer's place of that file. Where no file can be kept (a full disk), it only is not seen."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(_queue(database))
            for _ in range(_TRIES):
                with suppress(BlockingIOError):  # somebody is just looking
                    flock(file, LOCK_SH | LOCK_NB)
                    break
        yield


def anybody_waits(database: str) -> bool:
    try:
        with _queue(database) as file:
            flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def _queue(database: str) -> Iterator[int]:
    file = os.open(f"{database}-waiting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


@asynccontextmanager
async def begin_last(engine: AsyncEngine, patience_ms: int = PATIENCE_MS) -> AsyncIterator[AsyncConnection]:
    """A writing transaction that lets whoever waits go first, for `patience_ms` at most."""
    if engine.dialect.name == "sqlite":
        assert engine.url.database is not None
        patient_until_ns = time.monotonic_ns() + patience_ms * 1_000_000
        while anybody_waits(engine.url.database) and time.monotonic_ns() < patient_until_ns:
            await asyncio.sleep(_LOOK_MS / 1000)
    async with engine.begin() as connection:
        yield connection
