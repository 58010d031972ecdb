"""`metergate doctor`: diagnosis of configuration, database, Redis, providers, model files and GPU."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from gateway.cli.output import console, json_option
from gateway.cli.parse import config_option
from gateway.doctor import examine
from gateway.doctor_finding import Check, Health

STYLE = {Health.OK: "green", Health.WARN: "yellow", Health.FAIL: "bold red"}


@click.command()
@config_option
@click.option(
    "--url",
    envvar="METERGATE_URL",
    help="Where a gateway has to answer (METERGATE_URL; default: it may, where it listens).",
)
@json_option
def doctor(config: Path | None, url: str | None, as_json: bool) -> None:
    """Diagnose configuration, the running gateway, database, Redis, providers, model files and GPU. Exit 1 if anything fails."""
    checks = asyncio.run(examine(config, url))
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], ensure_ascii=False, indent=2))
    else:
        _print(checks)
    if any(check.health is Health.FAIL for check in checks):
        sys.exit(1)


def _print(checks: list[Check]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        text = check.detail + (f"\n→ {check.remedy}" if check.remedy else "")
        table.add_row(Text(check.health, style=STYLE[check.health]), check.name, Text(text))
    console().print(table)
