"""What can go wrong on the wire to a provider.

TransportError
├── ConnectFailed      nothing reached the provider: safe to try elsewhere
└── ConnectionLost     the provider was reached and then went away
    └── StaleConnection    a connection that had rested was dead: not a byte of an answer came on it
"""

from __future__ import annotations


class TransportError(Exception):
    """The message names what happened, never an address with credentials or a key."""


class ConnectFailed(TransportError):
    pass


class ConnectionLost(TransportError):
    pass


class StaleConnection(ConnectionLost):
    pass
