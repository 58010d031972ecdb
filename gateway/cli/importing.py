"""`metergate import litellm`: move from a LiteLLM proxy."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import click

from gateway.cli.admin_client import AdminClient, Json
from gateway.cli.errors import CliError
from gateway.litellm_config import Imported, read
from gateway.litellm_file import LiteLLMError
from gateway.words import counted


@click.group("import")
def importing() -> None:
    """Take over the configuration of another gateway."""


@importing.command("litellm")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), help="Where our configuration goes; without it, standard output."
)
@click.option(
    "--apply", is_flag=True, help="Also make the teams, budgets and prices in the gateway that runs at METERGATE_URL."
)
@click.option("--url", envvar="METERGATE_URL", default="http://127.0.0.1:8000", show_default=True, help="That gateway.")
def litellm(config: Path, output: Path | None, apply: bool, url: str) -> None:
    """Read a LiteLLM proxy configuration, write ours, and say what could not be taken."""
    try:
        imported = read(config)
    except LiteLLMError as error:
        raise CliError(str(error)) from error
    if output is None:
        click.echo(imported.yaml(), nl=False)
    else:
        try:
            output.write_text(imported.yaml(), "utf-8")
        except OSError as error:
            raise CliError(f"{output}: it cannot be written: {error.strerror}") from error
    for line in imported.left:
        click.echo(f"not taken: {line}", err=True)
    if apply:
        _apply(imported, url)
    settings, done = imported.settings, "made" if apply else "found; --apply makes them"
    models, providers = counted(len(settings["models"]), "model"), counted(len(settings["providers"]), "provider")
    bodies = {"team": imported.teams, "budget": imported.budgets, "price": imported.prices}
    more = ", ".join(counted(len(each), name) for name, each in bodies.items())
    click.echo(f"{models} over {providers}; {more} {done}", err=True)


def _apply(imported: Imported, url: str) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with AdminClient(url) as client:
        known = {row["name"] for row in client.pages("/teams")}
        for team in imported.teams:
            if team["name"] not in known:
                client.post("/teams", team)
        if imported.prices:
            prices = [{**price, "effective_from": now} for price in imported.prices]
            client.post("/price-books/import", {"prices": prices, "note": "taken over from LiteLLM"})
        standing = [_same(row) for row in client.pages("/budgets")]
        for budget in imported.budgets:
            if _same(budget) not in standing:
                client.post("/budgets", budget)


def _same(budget: Json) -> tuple[object, ...]:
    """What makes two budgets one: a file that is applied again doubles none."""
    named = (budget.get(name) for name in ("scope", "scope_id", "currency", "period", "timezone", "hard"))
    return (Decimal(budget["amount"]), *named)
