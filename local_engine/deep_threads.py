"""Threads for what recurses deeper than a usual stack."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

STACK_BYTES = 128 << 20
"""Address space: only what is touched takes memory."""


def deep_threads(count: int, name: str) -> ThreadPoolExecutor:
    """An executor of `count` threads, all of them started: the size of a stack is said when a thread begins."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        together = threading.Barrier(count + 1)
        for _ in range(count):
            executor.submit(together.wait)
        together.wait()
    finally:
        threading.stack_size(usual)
    return executor
