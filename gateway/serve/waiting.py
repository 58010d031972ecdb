"""A database that is away at the start, or held by somebody else: the gateway waits, and says that it is not ready (rule 26)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from gateway import errors
from gateway.api.asgi import JSON, Receive, Scope, Send, send_bytes, send_error
from gateway.ids import new_request_id
from gateway.serve.errors import DatabaseAway
from gateway.serve.server import make_server

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 3.0
"""So long a start is silent: whoever connects waits in the queue of the port."""
RETRY_S: Final = 0.5


async def once_there(
    listeners: Sequence[socket.socket], work: Callable[[], Awaitable[T]], patience_s: float | None = PATIENCE_S
) -> T:
    """What `work` returns, which is tried again for as long as it raises `DatabaseAway`. Where that takes longer than
    `patience_s` (None: never), every listener says meanwhile that the gateway lives and is not ready."""
    waiting = Waiting()
    trying = asyncio.create_task(_retried(work, waiting), name="start")
    try:
        await asyncio.wait({trying}, timeout=patience_s)
        if not trying.done():
            async with _answering(waiting, listeners):
                await asyncio.wait({trying})
        return trying.result()
    finally:
        trying.cancel()


async def _retried(work: Callable[[], Awaitable[T]], waiting: Waiting) -> T:
    told = False
    while True:
        try:
            done = await work()
        except DatabaseAway as away:
            waiting.reason = str(away)
            if not told:
                log.warning("not ready: %s", away)
                told = True
            await asyncio.sleep(RETRY_S)
            continue
        if told:
            log.info("the database is there")
        return done


class Waiting:
    """The application of a gateway that waits: liveness, readiness with `reason`, and 503 for all else."""

    def __init__(self) -> None:
        self.reason = "the database is being brought up to date"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] in ("/health", "/health/live"):
            await send_bytes(send, 200, b'{"status":"ok"}', [JSON])
        elif scope["path"] == "/health/ready":
            body = msgspec.json.encode({"status": "not ready", "reasons": [self.reason]})
            await send_bytes(send, 503, body, [JSON])
        else:
            message = "The gateway has just started and waits for its database. Try again."
            away = errors.unavailable(message, code="database_unavailable", retry_after_s=2)
            await send_error(send, away, str(new_request_id()).encode())


@contextlib.asynccontextmanager
async def _answering(waiting: Waiting, listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
    """On copies of the listeners, which stay open for who comes after."""
    server = make_server(waiting, grace_s=1)
    serving = asyncio.create_task(server.serve(sockets=[each.dup() for each in listeners]), name="waiting")
    try:
        yield
    finally:
        server.ask_to_stop()
        await serving
