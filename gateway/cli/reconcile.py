"""`metergate reconcile books|provider`: derived figures against their rows, and our attempts against a provider's account."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database, reading
from billing.times import format_time
from gateway.cli.errors import CliError
from gateway.cli.output import json_option, print_rows
from gateway.cli.parse import config_option
from gateway.metering.provider_export import ExportError, compare, read_export
from gateway.metering.reconcile import LOOK_BACK_HOURS, look, repair
from gateway.settings import Settings, load_settings

DRIFT_COLUMNS = ("what", "bucket", "where", "rows", "derived")
PROVIDER_COLUMNS = (
    "day",
    "model",
    "verdict",
    "here.requests",
    "there.requests",
    "here.input",
    "there.input",
    "here.cached",
    "there.cached",
    "here.output",
    "there.output",
    "uncertain",
)

_Result = TypeVar("_Result")


@click.group()
def reconcile() -> None:
    """Compare the books with themselves, and with what a provider says."""


@reconcile.command()
@click.option(
    "--hours", type=click.IntRange(1, 24 * 400), default=LOOK_BACK_HOURS, show_default=True, help="How far back."
)
@click.option("--repair", "repairs", is_flag=True, help="Make rollups and running balances again out of their rows.")
@config_option
@json_option
def books(hours: int, repairs: bool, config: Path | None, as_json: bool) -> None:
    """Rollups and wallets against the rows. Exit 1 where they differ and were not repaired."""

    async def work(database: AsyncEngine) -> tuple[list[dict[str, Any]], int, int]:
        found = await look(database, hours)
        done = await repair(database, found) if found and repairs else 0
        left = len(await look(database, hours)) if done else len(found)
        rows = [
            {**asdict(each), "bucket": None if each.bucket_us is None else format_time(each.bucket_us)}
            for each in found
        ]
        return rows, done, left

    found, done, left = _with_database(load_settings(config), work)
    print_rows(found, DRIFT_COLUMNS, as_json)
    if not found:
        click.echo(f"rollups and wallets equal their rows over {hours} hours", err=True)
    if done:
        click.echo(f"repaired {done}; {left} left", err=True)
    if left:
        sys.exit(1)


@reconcile.command()
@click.argument("export", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--provider", required=True, help="As the configuration names it.")
@click.option("--alias", "aliases", multiple=True, help="THEIRS=OURS, where a model has another name there.")
@config_option
@json_option
def provider(export: Path, provider: str, aliases: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """A provider's usage export against our attempts, by day and model. Exit 1 unless all match.

    EXPORT is the answer of OpenAI's /v1/organization/usage/completions with group_by=model (several pages as one JSON array),
    or the same as CSV with the columns start_time, model, num_model_requests, input_tokens, input_cached_tokens, output_tokens.
    """
    settings = load_settings(config)
    if provider not in settings.providers:
        raise CliError(f"there is no provider {provider!r}; configured: {', '.join(settings.providers) or 'none'}")
    names: dict[str, str] = {}
    for alias in aliases:
        theirs, equals, ours = alias.partition("=")
        if not (theirs and equals and ours):
            raise click.UsageError(f"--alias must be THEIRS=OURS, not {alias!r}")
        names[theirs] = ours
    try:
        counts = read_export(export.read_bytes())
    except ExportError as error:
        raise CliError(f"{export}: {error}") from error

    async def work(database: AsyncEngine) -> list[dict[str, Any]]:
        async with reading(database) as connection:
            return [asdict(each) for each in await compare(connection, provider, counts, aliases=names)]

    rows = _with_database(settings, work)
    print_rows(rows, PROVIDER_COLUMNS, as_json)
    if any(row["verdict"] != "matched" for row in rows):
        sys.exit(1)


def _with_database(settings: Settings, work: Callable[[AsyncEngine], Awaitable[_Result]]) -> _Result:
    async def run() -> _Result:
        database = open_database(settings.database_url, pool_size=1)
        try:
            return await work(database)
        finally:
            await database.dispose()

    try:
        return asyncio.run(run())
    except (SQLAlchemyError, OSError) as error:
        raise CliError(f"the database does not answer as it should: {error}; try `metergate db check`") from error
