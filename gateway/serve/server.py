"""The HTTP server of this process: uvicorn under our own signals, so that nothing is cut that could still be finished."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any, Final

import uvicorn

from gateway.allocator import give_back
from gateway.serve.protocol import HttpProtocol

SWEEP_TICKS: Final = 5
"""Of uvicorn's ticks, ten a second: how often connections are looked at for having waited too long."""
TRIM_TICKS: Final = 10
"""How often memory that nobody uses is given back."""


class Server(uvicorn.Server):
    """uvicorn without its signal handling: `ask_to_stop` ends it, a second time at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpProtocol):
                    connection.sweep(now_s)
        if counter % TRIM_TICKS == 0:
            give_back()
        return await super().on_tick(counter)

    def ask_to_stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def wait_started(self, serving: asyncio.Task[None]) -> None:
        """Returns when requests are accepted. Raises what `serving` raises."""
        while not self.started and not serving.done():
            await asyncio.sleep(0.005)
        if serving.done():
            serving.result()


def make_server(app: Any, grace_s: int) -> Server:
    """`app` is an ASGI application (uvicorn's own type for one is private). After `ask_to_stop` running requests have `grace_s`;
    then their streams are cut, and billed as cancelled."""
    return Server(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=grace_s,
        )
    )
