"""`metergate rate|terms`: in which currency, and how a team settles."""

from __future__ import annotations

import click

from gateway.cli.admin_client import AdminClient
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import HELP_TIME, given

RATE_COLUMNS = ("id", "kind", "base", "quote", "rate", "source", "effective_from", "recorded_at")
FEED_COLUMNS = ("feed", "added", "known", "newest", "refused")
TERMS_COLUMNS = ("id", "team_id", "provider", "policy", "rate", "bps", "base", "quote", "effective_from")


@click.group()
def rate() -> None:
    """Exchange rates."""


@rate.command("post")
@click.argument("base")
@click.argument("quote")
@click.argument("value")
@click.option("--kind", type=click.Choice(["reference", "policy", "contract"]), required=True)
@click.option("--source", default="manual", show_default=True)
@click.option("--from", "effective_from", help=HELP_TIME)
@admin_options
def rate_post(
    base: str, quote: str, value: str, kind: str, source: str, effective_from: str | None, url: str, as_json: bool
) -> None:
    """Record a rate: `rate post USD CNY 7.3 --kind policy` says that one USD is 7.3 CNY."""
    body = given(
        base=base,
        quote=quote,
        rate=value,
        kind=kind,
        source=source,
        effective_from=effective_from,
    )
    with AdminClient(url) as client:
        print_object(client.post("/rates", body), as_json)


@rate.command("list")
@admin_options
def rate_list(url: str, as_json: bool) -> None:
    """All rates, in the order they were recorded."""
    with AdminClient(url) as client:
        print_rows(client.pages("/rates"), RATE_COLUMNS, as_json)


@rate.command("fetch")
@click.option("--feed", help="Only this one of the configured feeds.")
@admin_options
def rate_fetch(feed: str | None, url: str, as_json: bool) -> None:
    """Have the gateway fetch its rate feeds now (`rates.feeds` in the configuration)."""
    with AdminClient(url) as client:
        answer = client.post("/rates/fetch", given(feed=feed))
    print_rows(answer["data"], FEED_COLUMNS, as_json)
    if any(each["refused"] for each in answer["data"]):
        raise SystemExit(1)


@click.group()
def terms() -> None:
    """Settlement terms."""


@terms.command("post")
@click.argument("base")
@click.argument("quote")
@click.option("--team", "team_id", help="The team that settles so.")
@click.option("--provider", help="Or the provider that we pay so.")
@click.option("--rate", "fixed", help="A fixed rate: 1 settles one BASE as one QUOTE.")
@click.option("--bps", type=int, help="Or the market's rate plus this many basis points.")
@click.option("--from", "effective_from", help=HELP_TIME)
@admin_options
def terms_post(
    base: str,
    quote: str,
    team_id: str | None,
    provider: str | None,
    fixed: str | None,
    bps: int | None,
    effective_from: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Say how BASE amounts are settled in QUOTE: `terms post USD CNY --team team_… --rate 1`."""
    if (team_id is None) == (provider is None):
        raise click.UsageError("name exactly one of --team and --provider")
    if (fixed is None) == (bps is None):
        raise click.UsageError("name exactly one of --rate and --bps")
    body = given(
        team_id=team_id,
        provider=provider,
        policy="fixed" if fixed is not None else "market_plus_bps",
        rate=fixed,
        bps=bps,
        base=base,
        quote=quote,
        effective_from=effective_from,
    )
    with AdminClient(url) as client:
        print_object(client.post("/terms", body), as_json)


@terms.command("list")
@admin_options
def terms_list(url: str, as_json: bool) -> None:
    """All settlement terms."""
    with AdminClient(url) as client:
        print_rows(client.pages("/terms"), TERMS_COLUMNS, as_json)
