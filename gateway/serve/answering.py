"""Requests, from the first to the last one's end, and what the signals to stop do before, during and after."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Final

from gateway.api.app import Part, create_app
from gateway.serve.errors import StartError
from gateway.serve.schema import bring_up_to_date, look
from gateway.serve.server import Server, make_server
from gateway.serve.sockets import on_signals
from gateway.services import Services
from gateway.settings import Settings

BUSY_TIMEOUT_MS: Final = 2_000
"""So long one try waits for SQLite's write lock: shorter than anybody's patience, who then hears what is waited for."""


class Ending:
    """What SIGTERM and SIGINT do: before requests are answered they end the start, then the server, the second one at once."""

    def __init__(self, *signals: signal.Signals) -> None:
        self._start = asyncio.current_task()
        self._servers: list[Server] = []
        self._services: Services | None = None
        on_signals(self.ask, *signals)

    def serve(self, servers: list[Server], services: Services) -> None:
        self._servers, self._services = servers, services

    def ask(self) -> None:
        if self._services is None:
            assert self._start is not None
            self._start.cancel()
            return
        self._services.drain()
        for server in self._servers:
            server.ask_to_stop()


async def answer_requests(
    settings: Settings,
    services: Services,
    listeners: Sequence[socket.socket],
    ending: Ending,
    serving: Callable[[], None],
) -> None:
    """Until the last request's end; `serving` is called when the first can come. With a second listener, operators have that one
    to themselves."""
    parts: tuple[Part, ...] = ("all",) if len(listeners) == 1 else ("callers", "operators")
    servers = [make_server(create_app(services, part), settings.shutdown_grace_s) for part in parts]
    ending.serve(servers, services)
    async with asyncio.TaskGroup() as group:
        for server, listener in zip(servers, listeners, strict=True):
            task = group.create_task(server.serve(sockets=[listener]), name="server")
            await server.wait_started(task)
        serving()


async def prepare_database(settings: Settings, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
    """SQLite is brought up to date; PostgreSQL only checked, since a change there is for all replicas to agree on. Raises
    `DatabaseAway`, or another `StartError` where this release does not fit it."""
    if settings.database_url.startswith("sqlite"):
        await bring_up_to_date(settings.database_url, busy_timeout_ms)
        return
    state = await look(settings.database_url)
    if not state.usable:
        raise StartError(state.advice)
