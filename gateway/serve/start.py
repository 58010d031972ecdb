"""The life of `metergate serve`: preflight, engines, migration, services, first keys, requests, and the end in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import uvloop

from gateway import logs
from gateway.access.admin_key import load_admin_key
from gateway.api.app import Part, create_app
from gateway.serve.banner import FirstRun, banner
from gateway.serve.bootstrap import first_team_key
from gateway.serve.engines import Engines
from gateway.serve.errors import StartError
from gateway.serve.preflight import bind, check_workers, lock_home, prepare_home
from gateway.serve.reload import SettingsWatch
from gateway.serve.schema import bring_up_to_date, look
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
    logs.configure(settings.log_level.upper(), settings.log_format)
    with contextlib.ExitStack() as held:
        for listener in listens:
            held.enter_context(listener)
        if settings.redis_url is None:
            held.enter_context(lock_home(settings.home))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(settings, options.config, listens))


async def _run(settings: Settings, config: Path | None, listens: list[socket.socket]) -> None:
    ending = Ending()
    engines = Engines(settings.home / "run", logs.teller(settings.log_format))
    try:
        await engines.apply(settings)
        await _prepare_database(settings)
        admin_key = load_admin_key(settings)
        services = await build_services(settings)
        engines.attach(services.router)
        await services.start()
        try:
            sqlite = settings.database_url.startswith("sqlite")
            team_key = await first_team_key(services) if sqlite else None
            first = FirstRun(admin_key.secret.reveal() if admin_key.created else None, team_key)
            watch = asyncio.create_task(
                SettingsWatch(config, settings, services.router, engines).run(), name="settings"
            )
            try:
                await _answer_requests(settings, services, engines, listens, first, ending)
            finally:
                watch.cancel()
        finally:
            await services.stop()
    finally:
        await engines.stop()


class Ending:
    """What SIGTERM and SIGINT do: before requests are answered they end the start, then the server, the second one at once."""

    def __init__(self) -> None:
        self._start = asyncio.current_task()
        self._servers: list[Server] = []
        self._services: Services | None = None
        on_signals(self._asked, signal.SIGTERM, signal.SIGINT)

    def serve(self, servers: list[Server], services: Services) -> None:
        self._servers, self._services = servers, services

    def _asked(self) -> None:
        if self._services is None:
            assert self._start is not None
            self._start.cancel()
            return
        self._services.drain()
        for server in self._servers:
            server.ask_to_stop()


async def _answer_requests(
    settings: Settings,
    services: Services,
    engines: Engines,
    listens: list[socket.socket],
    first: FirstRun,
    ending: Ending,
) -> None:
    """From the first request to the last one's end. With a second address, operators have that one to themselves."""
    parts: tuple[Part, ...] = ("all",) if len(listens) == 1 else ("callers", "operators")
    servers = [make_server(create_app(services, part), settings.shutdown_grace_s) for part in parts]
    ending.serve(servers, services)
    async with asyncio.TaskGroup() as serving:
        for server, listener in zip(servers, listens, strict=True):
            task = serving.create_task(server.serve(sockets=[listener]), name="server")
            await server.wait_started(task)
        welcome = asyncio.create_task(_welcome(settings, address_of(listens[0]), engines, first), name="welcome")
    welcome.cancel()


async def _welcome(settings: Settings, address: str, engines: Engines, first: FirstRun) -> None:
    """The banner, when the engines are up: what it shows to paste then works."""
    ready = await engines.settled(ENGINES_S)
    click.echo(banner(address, settings, first, engines_ready=ready))


async def _prepare_database(settings: Settings) -> None:
    """SQLite is brought up to date; PostgreSQL only checked, since a change there is for all replicas to agree on."""
    if settings.database_url.startswith("sqlite"):
        await bring_up_to_date(settings.database_url)
        return
    state = await look(settings.database_url)
    if not state.up_to_date:
        raise StartError(state.advice)
