"""TCP's question whether the other end is still there.

A machine that is lost, or a NAT that forgot, sends no FIN, and a connection on which nothing is under way never learns of it.
TCP_USER_TIMEOUT is left alone: it would also end a caller that reads nothing for a while and answers every probe.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

IDLE_S: Final = 30
INTERVAL_S: Final = 10
PROBES: Final = 3

if sys.platform == "darwin":
    _IDLE: Final = socket.TCP_KEEPALIVE
else:
    _IDLE: Final = socket.TCP_KEEPIDLE


def ask_whether_alive(end: socket.socket) -> None:
    """Ends a connection whose peer answered nothing for a minute. What a listening socket accepts inherits it."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, _IDLE, IDLE_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, INTERVAL_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
