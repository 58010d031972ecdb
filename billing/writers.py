"""Who writes next on SQLite, which has one writer's place and no queue for it.

Whoever waits for the place holds a shared lock on a file beside the database for as long as it waits; the lock goes with
the process. A writer that never rests, the recorder, looks at the file before each transaction and lets the others go first.
It works between threads and between processes, and costs nobody anything while nobody waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from typing import Final

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
