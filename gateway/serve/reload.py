"""Providers and models follow the configuration file: on SIGHUP and when it changes, without dropping a request."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from gateway.serve.errors import StartError
from gateway.serve.sockets import on_signals
from gateway.settings import Settings, SettingsError, load_settings
from gateway.words import counted

log = logging.getLogger(__name__)

POLL_S: Final = 1.0


class SettingsWatch:
    """Reads the settings again when asked to, or when the file's identity, time or size changes."""

    def __init__(
        self,
        config: Path | None,
        settings: Settings,
        take: Callable[[Settings], Awaitable[None]],
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """`take` gets settings whose providers or models have changed; `asked` hears of each SIGHUP."""
        self._config = config
        self._settings = settings
        self._take = take
        self._also = asked
        self._asked = asyncio.Event()
        self._seen = self._stamp()

    async def run(self) -> None:
        """Until cancelled."""
        on_signals(self._ask, signal.SIGHUP)
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._asked.wait()
            except TimeoutError:
                pass
            stamp = self._stamp()
            if self._asked.is_set() or (stamp != self._seen and stamp is not None):
                self._asked.clear()
                self._seen = stamp
                await self.reload()

    def _ask(self) -> None:
        self._asked.set()
        self._also()

    async def reload(self) -> None:
        """Takes over providers and models; what cannot be read or run changes nothing and is logged."""
        try:
            fresh = load_settings(self._config)
        except SettingsError as error:
            log.error("the settings stay as they were: %s", error)
            return
        if _routing(fresh) == _routing(self._settings):
            log.info("settings read again: providers and models are unchanged")
            return
        try:
            await self._take(fresh)
        except StartError as error:
            log.error("a bundled engine cannot be started: %s", error)
        self._settings = fresh
        found = (counted(len(fresh.providers), "provider"), counted(len(fresh.models), "model"))
        log.info("settings read again: %s", ", ".join(found))

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes when the file does; None while there is none (an editor may be replacing it)."""
        if self._config is None:
            return None
        try:
            found = self._config.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _routing(settings: Settings) -> tuple[object, ...]:
    """What a reload takes over."""
    return settings.providers, settings.models, settings.default_model
