"""What `metergate serve` does before anything runs: settings, sockets, folders; then one process, or several under one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

import uvloop

from gateway import logs
from gateway.allocator import use_one_arena
from gateway.serve.preflight import bind, check_workers, lock_home, prepare_home
from gateway.settings import Settings, load_settings


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
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(bind(*address)) for address in _addresses(options, settings)]
        prepare_home(settings.home)
        logs.configure(settings.log_level.upper(), settings.log_format)
        if settings.redis_url is None:
            held.enter_context(lock_home(settings.home))
        use_one_arena()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if options.workers == 1:
                from gateway.serve.single import run

                runner.run(run(settings, options.config, listeners))
            else:  # the parent of many imports little: it serves nobody
                from gateway.serve.fleet import run_fleet

                runner.run(run_fleet(settings, options.config, listeners, options.workers))


def _addresses(options: Options, settings: Settings) -> list[tuple[str, int]]:
    """Where callers go, and operators where they have an address of their own."""
    host, _, port = settings.listen.rpartition(":")
    addresses = [(options.host or host.strip("[]"), int(port) if options.port is None else options.port)]
    if settings.admin_listen is not None:
        admin_host, _, admin_port = settings.admin_listen.rpartition(":")
        addresses.append((admin_host.strip("[]"), int(admin_port)))
    return addresses
