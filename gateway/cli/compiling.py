"""`metergate compile`: the request's path as machine code."""

from __future__ import annotations

import time

import click

from gateway.cli.errors import CliError
from gateway.cli.output import json_option, print_object
from gateway.compiled import MODULES
from gateway.compiling import CannotCompile, compile_path


@click.command()
@click.option("--again", is_flag=True, help="Also where this version is compiled already.")
@json_option
def compiling(again: bool, as_json: bool) -> None:
    """Compile the path of a request (one to three minutes, once an installation); gateways started from then on run it."""
    began_s = time.monotonic()
    try:
        folder = compile_path(again=again)
    except CannotCompile as error:
        raise CliError(str(error)) from error
    took_s = round(time.monotonic() - began_s)
    if as_json:
        print_object({"folder": str(folder), "modules": len(MODULES), "seconds": took_s}, as_json)
    else:
        click.echo(f"{len(MODULES)} modules compiled into {folder} ({took_s} s); gateways started from now on run them")
