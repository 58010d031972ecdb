"""Signals into the loop, and a listening socket's address as people type it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable


def on_signals(action: Callable[[], None], *signals: signal.Signals) -> None:
    """Runs `action` in the loop for each of the signals, from now on."""
    loop = asyncio.get_running_loop()
    for each in signals:
        loop.add_signal_handler(each, action)


def address_of(listener: socket.socket) -> str:
    """`http://127.0.0.1:8000` as a person on this machine would type it."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
