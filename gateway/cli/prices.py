"""`metergate price`: the price book, its rows, its versions, and files on their way into it."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.admin_client import AdminClient, Json
from gateway.cli.errors import CliError
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import HELP_TIME, given

PRICE_COLUMNS = (
    "id",
    "provider",
    "model",
    "token_class",
    "amount",
    "currency",
    "unit",
    "service_tier",
    "processing",
    "min_input_tokens",
    "effective_from",
)
PREVIEW_COLUMNS = (
    "change",
    "provider",
    "model",
    "token_class",
    "amount",
    "currency",
    "unit",
    "min_input_tokens",
    "effective_from",
    "before.amount",
    "before.effective_from",
)
DRAFT_COLUMNS = ("id", "state", "note", "rows", "created_at", "closed_at", "version")
BOOK_COLUMNS = ("version", "state", "published_at", "added", "note", "hash")
DRIFT_COLUMNS = ("state", "source", "provider", "model", "token_class", "min_input_tokens", "ours", "theirs")
DIFF_COLUMNS = (*(f"price.{name}" for name in PRICE_COLUMNS), "before.amount", "before.effective_from")
EXPLAIN_COLUMNS = ("applies", "why", *(f"price.{name}" for name in PRICE_COLUMNS))
SELL_COLUMNS = ("id", "team_id", "provider", "model", "multiplier", "sell_list", "effective_from")


@click.group()
def price() -> None:
    """The price book."""


@price.command("post")
@click.argument("provider")
@click.argument("model")
@click.argument("token_class")
@click.argument("amount")
@click.argument("currency")
@click.option("--from", "effective_from", help=HELP_TIME)
@click.option("--unit", type=click.Choice(["mtok", "request", "second", "image", "hour"]))
@click.option("--service-tier")
@click.option("--processing", type=click.Choice(["standard", "batch"]))
@click.option("--min-input-tokens", type=int, help="The row applies strictly above this many input tokens.")
@click.option("--source", help="Where the price was read.")
@click.option(
    "--supersede", is_flag=True, help="Take the place of another amount from the same moment, which was wrong."
)
@admin_options
def price_post(
    provider: str,
    model: str,
    token_class: str,
    amount: str,
    currency: str,
    effective_from: str | None,
    unit: str | None,
    service_tier: str | None,
    processing: str | None,
    min_input_tokens: int | None,
    source: str | None,
    supersede: bool,
    url: str,
    as_json: bool,
) -> None:
    """Publish a price, by default per million tokens: `price post deepseek deepseek-chat output 0.42 USD`."""
    body = given(
        provider=provider,
        model=model,
        token_class=token_class,
        amount=amount,
        currency=currency,
        effective_from=effective_from,
        unit=unit,
        service_tier=service_tier,
        processing=processing,
        min_input_tokens=min_input_tokens,
        source=source,
        supersede=supersede or None,
    )
    with AdminClient(url) as client:
        answer = client.post("/prices", body)
    print_object(answer if as_json else {name: answer[name] for name in answer if name != "warnings"}, as_json)
    for warning in answer["warnings"]:
        click.echo(f"warning: {warning}", err=True)


@price.command("list")
@click.option("--provider", help="Only this price list.")
@click.option("--model", help="Only this model.")
@admin_options
def price_list(provider: str | None, model: str | None, url: str, as_json: bool) -> None:
    """The rows of the book, and which of them are in force now."""
    with AdminClient(url) as client:
        rows = client.pages("/prices", {"provider": provider, "model": model})
        print_rows(rows, ("in_force", *PRICE_COLUMNS), as_json)


@price.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Only show what each row would do.")
@click.option("--draft", is_flag=True, help="Keep the rows as a draft, to be published later.")
@click.option("--note", help="What the version is, for whoever reads the book.")
@admin_options
def price_import(file: Path, dry_run: bool, draft: bool, note: str | None, url: str, as_json: bool) -> None:
    """Publish the prices of a YAML or CSV file as one version of the book, or none of them."""
    if dry_run and draft:
        raise click.UsageError("name one of --dry-run and --draft")
    form = {".yaml": "yaml", ".yml": "yaml", ".csv": "csv"}.get(file.suffix.lower())
    if form is None:
        raise click.UsageError(f"{file.name}: the name must end in .yaml or .csv")
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file.name}: it cannot be read as UTF-8 text: {error}") from error
    body = given(format=form, content=content, note=note)
    with AdminClient(url) as client:
        if draft:
            _show_draft(client.post("/price-books/drafts", body), as_json)
        else:
            _show_import(client.post("/price-books/import", {**body, "dry_run": dry_run}), as_json)


@price.command("drafts")
@admin_options
def price_drafts(url: str, as_json: bool) -> None:
    """Drafts of the book, published and discarded ones too."""
    with AdminClient(url) as client:
        print_rows(client.pages("/price-books/drafts"), DRAFT_COLUMNS, as_json)


@price.command("draft")
@click.argument("draft_id", type=int)
@admin_options
def price_draft(draft_id: int, url: str, as_json: bool) -> None:
    """A draft, and what each of its rows would do to the book."""
    with AdminClient(url) as client:
        _show_draft(client.get(f"/price-books/drafts/{draft_id}"), as_json)


@price.command("publish")
@click.argument("draft_id", type=int)
@admin_options
def price_publish(draft_id: int, url: str, as_json: bool) -> None:
    """Publish a draft as one new version."""
    with AdminClient(url) as client:
        print_object(client.post(f"/price-books/drafts/{draft_id}/publish", {}), as_json)


@price.command("discard")
@click.argument("draft_id", type=int)
@admin_options
def price_discard(draft_id: int, url: str, as_json: bool) -> None:
    """Throw a draft away."""
    with AdminClient(url) as client:
        print_object(client.post(f"/price-books/drafts/{draft_id}/discard", {}), as_json)


@price.command("books")
@admin_options
def price_books(url: str, as_json: bool) -> None:
    """The versions of the book."""
    with AdminClient(url) as client:
        print_rows(client.pages("/price-books"), BOOK_COLUMNS, as_json)


@price.command("diff")
@click.argument("version", type=int)
@click.option("--against", type=int, help="An older version (default: the one before).")
@admin_options
def price_diff(version: int, against: int | None, url: str, as_json: bool) -> None:
    """What a version added, beside what it closed."""
    with AdminClient(url) as client:
        answer = client.get(f"/price-books/{version}/diff", {"against": against})
    print_rows(answer["data"], DIFF_COLUMNS, as_json)


@price.command("explain")
@click.argument("provider")
@click.argument("model")
@click.argument("token_class")
@click.option("--at", help=HELP_TIME)
@click.option("--version", type=int, help="As this version of the book knew it (default: the newest).")
@click.option("--total-input", type=int, help="Input tokens of the request, for prices with a threshold.")
@click.option("--service-tier")
@click.option("--processing", type=click.Choice(["standard", "batch"]))
@admin_options
def price_explain(
    provider: str,
    model: str,
    token_class: str,
    at: str | None,
    version: int | None,
    total_input: int | None,
    service_tier: str | None,
    processing: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Which row prices a class at a moment, and why the others do not."""
    asked = given(
        provider=provider,
        model=model,
        token_class=token_class,
        at=at,
        version=version,
        total_input=total_input,
        service_tier=service_tier,
        processing=processing,
    )
    with AdminClient(url) as client:
        answer = client.get("/prices/explain", asked)
    if as_json:
        print_object(answer, as_json)
    else:
        print_rows(answer["rows"], EXPLAIN_COLUMNS, as_json)


@price.command("drift")
@click.option(
    "--known",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file of acknowledged differences (default: none are).",
)
@click.option("--acknowledge", metavar="NOTE", help="Write today's differences to --known, with this note.")
@admin_options
def price_drift(known: Path | None, acknowledge: str | None, url: str, as_json: bool) -> None:
    """Where the book differs from the list prices that the gateway knows of: this release's own book, and the genai-prices
    package where that is installed. It never writes the book; exit 1 where a difference is new."""
    from billing.price_drift import Acknowledged, Drift, is_known, read_acknowledged, write_acknowledged

    if acknowledge is not None and known is None:
        raise click.UsageError("--acknowledge needs --known FILE to write to")
    with AdminClient(url, timeout_s=60) as client:
        answer = client.get("/prices/drift")
    standing: list[Acknowledged] = []
    if known is not None and known.exists():
        try:
            standing = read_acknowledged(known.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"{known}: it cannot be read: {error}") from error
    found = [Drift(**{name: row[name] for name in Drift.__struct_fields__}) for row in answer["data"]]
    new = [not each.known and not is_known(each, standing) for each in found]
    rows = [{**row, "state": "new" if is_new else "known"} for row, is_new in zip(answer["data"], new, strict=True)]
    print_rows(rows, DRIFT_COLUMNS, as_json)
    for source in answer["sources"]:
        click.echo(f"{source['name']}: {source['state']}, {source['prices']} prices ({source['detail']})", err=True)
    if acknowledge is not None and known is not None:
        try:
            known.write_text(write_acknowledged(found, standing, acknowledge), encoding="utf-8")
        except OSError as error:
            raise CliError(f"{known}: it cannot be written: {error.strerror}") from error
    elif any(new):
        raise click.exceptions.Exit(1)


def _show_import(answer: Json, as_json: bool) -> None:
    if as_json:
        print_object(answer, as_json)
        return
    print_rows(answer["prices"], PREVIEW_COLUMNS, as_json)
    click.echo("nothing was published (dry run)" if answer["dry_run"] else f"in version {answer['version']}")


def _show_draft(draft: Json, as_json: bool) -> None:
    if as_json:
        print_object(draft, as_json)
        return
    print_object({name: draft[name] for name in DRAFT_COLUMNS}, as_json)
    print_rows(draft["prices"], PREVIEW_COLUMNS, as_json)


@price.group("sell")
def price_sell() -> None:
    """What teams are sold at, where that is not the provider's price."""


@price_sell.command("post")
@click.argument("team_id")
@click.option("--multiplier", help="Of the provider's price: 1.25 is a quarter more, 1 the price itself.")
@click.option("--list", "sell_list", help="Or the price list that the team buys on.")
@click.option("--provider", help="Only for this price list.")
@click.option("--model", help="Only for this model.")
@click.option("--from", "effective_from", help=HELP_TIME)
@admin_options
def sell_post(
    team_id: str,
    multiplier: str | None,
    sell_list: str | None,
    provider: str | None,
    model: str | None,
    effective_from: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Say what a team is sold at: `price sell post team_… --multiplier 1.25`. The most specific row applies."""
    if (multiplier is None) == (sell_list is None):
        raise click.UsageError("name exactly one of --multiplier and --list")
    body = given(
        team_id=team_id,
        multiplier=multiplier,
        sell_list=sell_list,
        provider=provider,
        model=model,
        effective_from=effective_from,
    )
    with AdminClient(url) as client:
        print_object(client.post("/sell-prices", body), as_json)


@price_sell.command("list")
@click.option("--team", "team_id", help="Only this team's.")
@admin_options
def sell_list(team_id: str | None, url: str, as_json: bool) -> None:
    """All sell prices, in the order they were recorded."""
    with AdminClient(url) as client:
        print_rows(client.pages("/sell-prices", {"team_id": team_id}), SELL_COLUMNS, as_json)
