"""The life of `metergate serve`: preflight, engines, migration, services, first keys, requests, and the end in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import uvloop

from gateway import database
from gateway.access.admin_key import load_admin_key
from gateway.api.app import create_app
from gateway.serve.banner import FirstRun, banner
from gateway.serve.bootstrap import first_team_key
from gateway.serve.engines import Engines
from gateway.serve.errors import StartError
from gateway.serve.preflight import bind, check_workers, lock_home, prepare_home
from gateway.serve.reload import watch_settings
from gateway.serve.server import Server, address_of, make_server, on_signals
from gateway.services import Services, build_services
from gateway.settings import Settings, load_settings

log = logging.getLogger(__name__)

ENGINES_S: Final = 300
"""The banner waits this long for engines to load before it comes without them."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None leaves it to the settings."""

    config: Path | None
    host: str | None
    port: int | None
    workers: int


def serve(options: Options) -> None:
    """Serves until SIGTERM or SIGINT. Raises `StartError` and `SettingsError`."""
    settings = load_settings(options.config)
    check_workers(options.workers, settings)
    host, _, port = settings.listen.rpartition(":")
    host = options.host or host.strip("[]")
    listens = [bind(host, int(port) if options.port is None else options.port)]
    if settings.admin_listen is not None:
        admin_host, _, admin_port = settings.admin_listen.rpartition(":")
        listens.append(bind(admin_host.strip("[]"), int(admin_port)))
    prepare_home(settings.home)
    _configure_logging(settings.log_level)
    with contextlib.ExitStack() as held:
        for listener in listens:
            held.enter_context(listener)
        if settings.redis_url is None:
            held.enter_context(lock_home(settings.home))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, options.config, listens))


async def _run(settings: Settings, config: Path | None, listens: list[socket.socket]) -> None:
    stop = asyncio.Event()
    on_signals(stop.set, signal.SIGTERM, signal.SIGINT)
    engines = Engines(settings.home / "run", lambda line: click.echo(line, err=True))
    try:
        await engines.apply(settings)
        await asyncio.to_thread(_migrate, settings)
        admin_key = load_admin_key(settings)
        services = await build_services(settings)
        engines.attach(services.router)
        await services.start()
        try:
            team_key = await first_team_key(services) if settings.database_url.startswith("sqlite") else None
            first = FirstRun(admin_key.secret.reveal() if admin_key.created else None, team_key)
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(watch_settings(config, services, engines))
                await _answer_requests(settings, services, engines, listens, first, stop)
                watcher.cancel()
        finally:
            await services.stop()
    finally:
        await engines.stop()
