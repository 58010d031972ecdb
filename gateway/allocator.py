"""glibc's allocator, held to one arena: it gives each thread that allocates at once one of its own, and hands none back."""

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
