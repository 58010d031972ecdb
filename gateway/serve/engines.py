"""The bundled engines that the settings ask for, each under its supervisor, and the router's view of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.serve.preflight import check_engine_installed
from gateway.serve.supervisor import DRAIN_GRACE_S, EngineSupervisor, engine_command
from gateway.settings import Settings

API_KEY_VARIABLE: Final = "METERGATE_ENGINE_API_KEY"
"""Where the engine looks for its key: a flag would show it to every user of the machine."""


def bundled(settings: Settings) -> dict[str, list[str]]:
    """The command of each provider whose engine this process has to run: kind `engine` without a `base_url`."""
    return {
        name: engine_command(provider.model, provider.engine_args)
        for name, provider in settings.providers.items()
        if provider.kind == "engine" and provider.base_url is None and provider.model is not None
    }


Follow = Callable[[str, str | None, str], None]
"""Hears of a provider's engine: its name, where it answers (None: nowhere now), and the key that it asks for."""


class Engines:
    """Starts engines at once, before there is a router: loading weights takes longest. `attach` then says who follows them.

    Engines ask for a key that only this process knows, so that nobody on the machine is served past the books.
    """

    def __init__(self, run_folder: Path, echo: Callable[[str], None]) -> None:
        self._run_folder = run_folder
        self._echo = echo
        self._follow: Follow | None = None
        self._restarted: Callable[[str], None] | None = None
        self._commands: dict[str, list[str]] = {}
        self._supervisors: dict[str, EngineSupervisor] = {}
        self._changed = asyncio.Event()
        self._secret = secrets.token_urlsafe(32)

    def __len__(self) -> int:
        return len(self._supervisors)

    async def apply(self, settings: Settings) -> None:
        """Starts what is new, stops what is gone, replaces what changed. Raises `StartError` if the engine is not installed."""
        wanted = bundled(settings)
        for name in wanted:
            check_engine_installed(name)
        ending = [name for name, command in self._commands.items() if wanted.get(name) != command]
        await asyncio.gather(*(self._supervisors.pop(name).stop(DRAIN_GRACE_S) for name in ending))
        for name, command in wanted.items():
            if name not in self._supervisors:
                supervisor = EngineSupervisor(
                    name,
                    command,
                    self._run_folder,
                    self._announcer(name),
                    self._echo,
                    {API_KEY_VARIABLE: self._secret},
                    functools.partial(self._count, name),
                )
                self._supervisors[name] = supervisor
                supervisor.start()
        self._commands = wanted

    def attach(self, follow: Follow, restarted: Callable[[str], None]) -> None:
        """From now on `follow` is told where each engine is, to begin with where it is now, and `restarted` which one was started
        again."""
        self._follow, self._restarted = follow, restarted
        for name, supervisor in self._supervisors.items():
            self._tell(name, supervisor.base_url)

    async def settled(self, timeout_s: float) -> bool:
        """Waits until every engine is ready (True), or one has failed to start or the time is over (False)."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(each.base_url for each in self._supervisors.values()):
                    if any(each.restarts for each in self._supervisors.values()):
                        return False
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 0.5)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        await asyncio.gather(*(each.stop() for each in self._supervisors.values()))
        self._supervisors.clear()

    def _announcer(self, name: str) -> Callable[[str | None], None]:
        def announce(base_url: str | None) -> None:
            self._changed.set()
            self._tell(name, base_url)
            if base_url is not None:
                self._echo(f"[engine {name}] ready")

        return announce

    def _count(self, name: str) -> None:
        if self._restarted is not None:
            self._restarted(name)

    def _tell(self, name: str, base_url: str | None) -> None:
        if self._follow is not None:
            self._follow(name, base_url, self._secret)
