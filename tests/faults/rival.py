"""Another client of the database, which gets in a recorder's way with locks and updates of its own."""

from __future__ import annotations

import asyncio
import queue
import threading

from billing.database import open_database


class Rival:
    """One connection whose orders are carried out in a thread, so that one that waits for a lock holds up no test."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._orders: queue.Queue[str | None] = queue.Queue()
        self._done: queue.Queue[BaseException | None] = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        engine = open_database(self._url)
        try:
            async with engine.connect() as connection:
                while (order := await asyncio.to_thread(self._orders.get)) is not None:
                    try:
                        await connection.exec_driver_sql(order)
                        self._done.put(None)
                    except BaseException as error:
                        self._done.put(error)
        finally:
            await engine.dispose()

    def begin(self, order: str) -> None:
        """Has it done without waiting for it."""
        self._orders.put(order)

    def wait(self) -> None:
        error = self._done.get(timeout=60)
        if error is not None:
            raise error

    def do(self, order: str) -> None:
        self.begin(order)
        self.wait()

    def end(self) -> None:
        self._orders.put(None)
        self._thread.join(60)
