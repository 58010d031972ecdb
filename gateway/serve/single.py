"""The life of a gateway in one process: engines, migration, services, first keys, requests, and the end in reverse."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from gateway import logs
from gateway.access.admin_key import load_admin_key
from gateway.serve.answering import Ending, answer_requests, prepare_database
from gateway.serve.banner import FirstRun, banner
from gateway.serve.bootstrap import first_team_key
from gateway.serve.engines import Engines
from gateway.serve.reload import SettingsWatch
from gateway.serve.schema import telling
from gateway.serve.sockets import address_of
from gateway.serve.waiting import once_there
from gateway.services import Services, build_services
from gateway.settings import Settings

ENGINES_S: Final = 300
"""The banner waits this long for engines to load before it comes without them."""


async def run(settings: Settings, config: Path | None, listeners: Sequence[socket.socket]) -> None:
    ending = Ending(signal.SIGTERM, signal.SIGINT)
    engines = Engines(settings.home / "run", logs.teller(settings.log_format))
    welcomes: list[asyncio.Task[None]] = []
    try:
        await engines.apply(settings)
        await once_there(listeners, partial(prepare_database, settings))
        admin_key = load_admin_key(settings)
        services = await build_services(settings)
        engines.attach(services.router.follow, lambda name: services.metrics.engine_restarts.labels(name).inc())

        async def take(fresh: Settings) -> None:
            services.router.reload(fresh)
            await engines.apply(fresh)

        await services.start()
        try:
            sqlite = settings.database_url.startswith("sqlite")
            team_key = await once_there(listeners, partial(_first_team_key, services)) if sqlite else None
            first = FirstRun(admin_key.secret.reveal() if admin_key.created else None, team_key)

            def serving() -> None:
                welcome = _welcome(settings, address_of(listeners[0]), engines, first)
                welcomes.append(asyncio.create_task(welcome, name="welcome"))

            watch = asyncio.create_task(SettingsWatch(config, settings, take).run(), name="settings")
            try:
                await answer_requests(settings, services, listeners, ending, serving)
            finally:
                for task in (watch, *welcomes):
                    task.cancel()
        finally:
            await services.stop()
    finally:
        await engines.stop()


async def _first_team_key(services: Services) -> str | None:
    with telling(services.settings.database_url):
        return await first_team_key(services)


async def _welcome(settings: Settings, address: str, engines: Engines, first: FirstRun) -> None:
    """The banner, when the engines are up: what it shows to paste then works."""
    ready = await engines.settled(ENGINES_S)
    click.echo(banner(address, settings, first, engines_ready=ready))
