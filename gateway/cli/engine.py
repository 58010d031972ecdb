"""`metergate engine serve MODEL …`: the engine alone, as a program of its own in this process's place."""

from __future__ import annotations

import os
import sys

import click

from gateway.serve.preflight import check_engine_installed


@click.group()
def engine() -> None:
    """The engine alone: serve one model over OpenAI's API."""


@engine.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve MODEL (a folder, a .gguf file or a known name). `metergate engine serve --help` lists the flags."""
    check_engine_installed("engine serve")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "local_engine", "serve", *arguments])
