"""glibc's allocator: held to one arena, for it gives each thread that allocates at once one of its own and hands none back; and
asked now and then for what is free in the middle of it, which it keeps otherwise."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

M_ARENA_MAX: Final = -8
"""malloc.h"""


def use_one_arena() -> None:
    """For processes with one busy thread (6 MB of the door's; bench/footprint.py). Nothing happens under another C library."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def give_back() -> None:
    """Hands free pages to the system: 8 MB of a busy door's, for a tenth of a millisecond (bench/results/door-profile.md)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
