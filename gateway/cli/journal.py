"""`metergate journal ls|show|replay|give-up`: the journal as it lies on the disk, a gateway running or not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import click
import msgspec

from billing.times import DAY_US, now_us
from gateway.cli.errors import CliError
from gateway.cli.output import json_option, print_object, print_rows
from gateway.cli.parse import config_option
from gateway.metering import inspect, segments
from gateway.metering.segments import process_folders
from gateway.metering.shipper import Outage
from gateway.metrics import Metrics
from gateway.settings import load_settings

LIST_COLUMNS = ("process", "state", "segments", "unfinished", "unshipped_bytes", "torn_bytes", "damaged_bytes")


@click.group()
def journal() -> None:
    """Look into the journal, ship it again, or give up what cannot be read."""


@journal.command()
@config_option
@json_option
def ls(config: Path | None, as_json: bool) -> None:
    """Each process's journal: live, an orphan that waits for adoption, or shipped and kept for a while."""
    journals = [msgspec.to_builtins(each) for each in inspect.list_journals(_journal(config))]
    if not as_json:
        for each in journals:
            each["segments"] = len(each["segments"])
    print_rows(journals, LIST_COLUMNS, as_json)


@journal.command()
@click.argument("process", required=False)
@click.option("--request", "request_id", type=click.UUID, help="Only this request's records.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="All of them as one JSON array.")
def show(process: str | None, request_id: UUID | None, config: Path | None, as_json: bool) -> None:
    """The records of one process's journal, or of all, a JSON object a line."""
    folder = _journal(config, process)
    lines = (_line(shown) for shown in inspect.show_records(folder, process=process, request_id=request_id))
    if not as_json:
        for line in lines:
            click.echo(line)
        return
    click.echo("[", nl=False)
    for at, line in enumerate(lines):
        click.echo(f"{',' if at else ''}\n{line}", nl=False)
    click.echo("\n]")


def _line(shown: inspect.ShownRecord) -> str:
    fields = msgspec.to_builtins(shown)
    if shown.record is not None:
        names = shown.record.__struct_fields__
        fields["record"] = {
            name: msgspec.to_builtins(getattr(shown.record, name)) for name in names if name != "request_id"
        }
    return json.dumps(fields, ensure_ascii=False)


@journal.command("give-up")
@click.argument("process")
@click.option("--undo", is_flag=True, help="It can be read after all: have it shipped.")
@config_option
@json_option
def give_up(process: str, undo: bool, config: Path | None, as_json: bool) -> None:
    """Have nothing wait any longer for a journal that cannot be read. What it holds does not come into the books."""
    folder = _journal(config, process) / process
    why = "" if undo else inspect.trouble(folder)
    if undo:
        segments.take_back(folder)
        said = f"{process} is taken over again by the next gateway, or by a running one within seconds"
    elif not why:
        raise CliError(f"{process} can be read: start a gateway over it, and it is shipped")
    else:
        try:
            segments.give_up(folder)
        except OSError as error:
            raise CliError(f"{folder.parent} cannot be written: {error}") from error
        said = (
            f"{process} is given up ({why}); budgets no longer wait for it.\n"
            f"Keep {folder}: with --undo it is shipped once it can be read.\n"
            "A statement that it may belong to names it: `metergate statement issue … --without-journal`"
        )
    if as_json:
        print_object({"process": process, "given_up": not undo, "trouble": why, "folder": str(folder)}, as_json)
    else:
        click.echo(said)


@journal.command()
@click.argument("process", required=False)
@config_option
@json_option
def replay(process: str | None, config: Path | None, as_json: bool) -> None:
    """Ship every request of the journal again, and retry what was set aside. Rows that are there stay as they are; what is older
    than `retention.usage_days` is left out."""
    folder, settings = _journal(config, process), load_settings(config)
    days = settings.retention.usage_days
    try:
        since_us = 0 if days is None else now_us() - days * DAY_US
        done = inspect.replay(folder, settings.database_url, Metrics(), process=process, since_us=since_us)
        summary = asyncio.run(done)
    except Outage as outage:
        raise CliError(f"the database cannot take the rows now: {outage}; try again when it can") from outage
    print_object(msgspec.to_builtins(summary), as_json)


def _journal(config: Path | None, process: str | None = None) -> Path:
    """The journal's folder. Raises `CliError` when it has none of the named process."""
    folder = load_settings(config).home / "journal"
    if process is not None and process not in {each.name for each in process_folders(folder)}:
        raise CliError(f"no journal of process {process!r} under {folder}; `metergate journal ls` lists them")
    return folder
