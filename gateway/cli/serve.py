"""`metergate serve`: the gateway, with its bundled engines."""

from __future__ import annotations

from asyncio import CancelledError
from pathlib import Path

import click

from gateway.cli.parse import config_option


@click.command()
@config_option
@click.option("--host", help="Address to listen on (default: the setting `listen`, 127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on (default: 8000; 0 picks a free one).")
@click.option("--workers", type=int, default=1, show_default=True, help="Above 1 asks for PostgreSQL and Redis.")
def serve(config: Path | None, host: str | None, port: int | None, workers: int) -> None:
    """Serve the gateway, with its bundled engines, until SIGTERM or Ctrl-C."""
    from gateway.serve.start import Options
    from gateway.serve.start import serve as run

    try:
        run(Options(config=config, host=host, port=port, workers=workers))
    except (CancelledError, KeyboardInterrupt) as interrupted:
        raise click.exceptions.Exit(130) from interrupted
