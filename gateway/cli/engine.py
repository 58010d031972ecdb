"""`metergate engine serve|plan|quantize MODEL …`: the engine alone, as a program of its own in this process's place."""

from __future__ import annotations

import os
import sys

import click

from gateway.serve.preflight import check_engine_installed


@click.group()
def engine() -> None:
    """The engine alone: serve one model over OpenAI's API, plan its memory, or quantise it."""


PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""The engine parses its own flags, --help included."""


@engine.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Serve MODEL (a folder, a .gguf file or a known name). `metergate engine serve --help` lists the flags."""
    check_engine_installed("engine serve")
    _become("serve", arguments)


@engine.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def plan(arguments: tuple[str, ...]) -> None:
    """Say what memory MODEL takes and which GPUs hold it; needs no GPU and no torch (--help lists the flags)."""
    _become("plan", arguments)


@engine.command(context_settings=PASS_ON, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def quantize(arguments: tuple[str, ...]) -> None:
    """Write MODEL as a checkpoint in 4 or 8 bits, with its perplexity before and after (--help lists the flags)."""
    check_engine_installed("engine quantize")
    _become("quantize", arguments)


def _become(verb: str, arguments: tuple[str, ...]) -> None:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "local_engine", verb, *arguments])
