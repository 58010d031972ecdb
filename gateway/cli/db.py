"""`metergate db upgrade|check`: the migrations."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path

import click

from gateway.cli.errors import CliError
from gateway.cli.output import json_option, print_object
from gateway.cli.parse import config_option
from gateway.database import SchemaState
from gateway.serve.preflight import prepare_home
from gateway.serve.schema import bring_up_to_date, look
from gateway.settings import Settings, load_settings, redact_url


def _settings(config: Path | None) -> Settings:
    settings = load_settings(config)
    if settings.database_url.startswith("sqlite"):
        prepare_home(settings.home)
    return settings


@click.group()
def db() -> None:
    """Upgrade the database, or check it."""


@db.command()
@config_option
@json_option
def upgrade(config: Path | None, as_json: bool) -> None:
    """Bring the database to this version's schema. Safe to run again, and from several places at once."""
    settings = _settings(config)
    state = asyncio.run(bring_up_to_date(settings.database_url))
    _tell(settings, state, "", as_json)


@db.command()
@config_option
@json_option
def check(config: Path | None, as_json: bool) -> None:
    """Exit 0 if this version runs on the database's schema, 1 with what to do if not."""
    settings = _settings(config)
    state = asyncio.run(look(settings.database_url))
    if not (state.usable or as_json):
        raise CliError(state.advice)
    whose = "which is this version's" if state.up_to_date else f"a newer one that this version ({state.wanted}) runs on"
    _tell(settings, state, f", {whose}", as_json)
    if not state.usable:
        sys.exit(1)


def _tell(settings: Settings, state: SchemaState, more: str, as_json: bool) -> None:
    database = redact_url(settings.database_url)
    if as_json:
        print_object({"database": database, **asdict(state), "usable": state.usable, "advice": state.advice}, as_json)
    else:
        click.echo(f"{database} has schema {state.current}{more}")
