"""`metergate usage report|focus|requests|show|what-if|break-even`: what was used and what it cost."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from typing import TextIO

import click

from gateway.cli.admin_client import AdminClient
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import given, text_lines

REPORT_COLUMNS = (
    "start",
    "group",
    "requests",
    "errors",
    "tokens",
    "unpriced",
    "estimated",
    "list",
    "settled",
    "policy",
    "saving_percent",
    "cost",
    "margin",
    "margin_partial",
)
REQUEST_COLUMNS = (
    "at",
    "id",
    "team_id",
    "key_id",
    "model",
    "provider",
    "status",
    "tokens.input",
    "tokens.cache_read",
    "tokens.output",
    "list",
    "settled",
    "margin",
    "latency_ms",
)


CORRECTION_COLUMNS = ("original", "reversal", "replacement", "reason", "actor", "recorded_at")
WHAT_IF_COLUMNS = (
    "team_id",
    "model",
    "requests",
    "tokens",
    "actual.settled",
    "what_if.settled",
    "difference",
    "what_if.unpriced",
)
UPSTREAM_COLUMNS = (
    "provider",
    "model",
    "cost",
    "cost_per_mtok",
    "break_even_tokens_per_hour",
    "break_even_percent",
    "cheaper",
)


@click.group()
def usage() -> None:
    """What was used and what it cost."""


@usage.command("report")
@click.option("--start", help="RFC 3339 time (default: 30 days ago).")
@click.option("--end", help="RFC 3339 time (default: now).")
@click.option("--interval", type=click.Choice(["hour", "day", "month"]), default="month", show_default=True)
@click.option("--timezone", default="UTC", show_default=True)
@click.option(
    "--group-by",
    default="team,model",
    show_default=True,
    help="Of team, key, model, provider, provider_model, tag:NAME.",
)
@admin_options
def usage_report(
    start: str | None, end: str | None, interval: str, timezone: str, group_by: str, url: str, as_json: bool
) -> None:
    """Sums by time and group."""
    now = datetime.now(UTC)
    asked = {
        "start": start or _rfc3339(now - timedelta(days=30)),
        "end": end or _rfc3339(now + timedelta(seconds=1)),
        "interval": interval,
        "timezone": timezone,
        "group_by": group_by,
    }
    with AdminClient(url) as client:
        print_rows(client.pages("/usage", asked), REPORT_COLUMNS, as_json)


@usage.command("focus")
@click.option("--start", help="RFC 3339 time (default: 30 days ago).")
@click.option("--end", help="RFC 3339 time (default: now).")
@click.option("--interval", type=click.Choice(["hour", "day", "month"]), default="day", show_default=True)
@click.option("--timezone", default="UTC", show_default=True)
@click.option("--team", "team_id", help="Only this team.")
@click.option("--key", "key_id", help="Only this key.")
@click.option("--model", help="Only this model.")
@click.option("--provider", help="Only what this provider served.")
@click.option(
    "--out", type=click.File("w", lazy=True), default="-", help="The file to write (default: standard output)."
)
@admin_options
def usage_focus(
    start: str | None,
    end: str | None,
    interval: str,
    timezone: str,
    team_id: str | None,
    key_id: str | None,
    model: str | None,
    provider: str | None,
    out: TextIO,
    url: str,
    as_json: bool,
) -> None:
    """A range as FOCUS 1.2 rows, whose BilledCost sums to the ledger: CSV, or with --json one object a line."""
    asked = {
        "start": start,
        "end": end,
        "interval": interval,
        "timezone": timezone,
        "team_id": team_id,
        "key_id": key_id,
        "model": model,
        "provider": provider,
    }
    with AdminClient(url, timeout_s=600) as client:
        pieces = client.pieces("/usage/focus", asked)
        if as_json:
            for row in csv.DictReader(text_lines(pieces)):
                out.write(json.dumps({name: value or None for name, value in row.items()}, ensure_ascii=False) + "\n")
        else:
            for piece in pieces:
                out.write(piece)


@usage.command("requests")
@click.option("--start", help="RFC 3339 time: requests made from then on.")
@click.option("--end", help="RFC 3339 time: and before then.")
@click.option("--team", "team_id")
@click.option("--key", "key_id")
@click.option("--model")
@click.option("--status", type=click.Choice(["completed", "incomplete", "cancelled", "failed", "lost"]))
@click.option("--provider", help="Only what this provider served.")
@click.option("--unpriced", is_flag=True, help="Only those without a price.")
@click.option("--negative-margin", is_flag=True, help="Only those that cost more than they bring.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@admin_options
def usage_requests(
    start: str | None,
    end: str | None,
    team_id: str | None,
    key_id: str | None,
    model: str | None,
    status: str | None,
    provider: str | None,
    unpriced: bool,
    negative_margin: bool,
    limit: int,
    url: str,
    as_json: bool,
) -> None:
    """Single requests, the newest first."""
    asked = {
        "start": start,
        "end": end,
        "team_id": team_id,
        "key_id": key_id,
        "model": model,
        "status": status,
        "provider": provider,
        "unpriced": "true" if unpriced else None,
        "negative_margin": "true" if negative_margin else None,
    }
    with AdminClient(url) as client:
        print_rows(client.pages("/usage/requests", asked, limit=limit), REQUEST_COLUMNS, as_json)


@usage.command("show")
@click.argument("request_id")
@admin_options
def usage_show(request_id: str, url: str, as_json: bool) -> None:
    """One request, with the price rows and rates it was computed from."""
    with AdminClient(url) as client:
        print_object(client.get(f"/usage/requests/{request_id}"), as_json)


@usage.command("correct")
@click.argument("request_id")
@click.option("--reason", required=True, help="It stands in the books for ever.")
@click.option("--reverse", is_flag=True, help="Take the row back and charge nothing, instead of rating it again.")
@click.option("--actor", help="Who did it (default: admin).")
@admin_options
def usage_correct(request_id: str, reason: str, reverse: bool, actor: str | None, url: str, as_json: bool) -> None:
    """Rate a request again with today's prices, rates and terms: a linked reversal and a new row; nothing is edited."""
    body = given(action="reverse" if reverse else "rerate", reason=reason, actor=actor)
    with AdminClient(url) as client:
        print_object(client.post(f"/usage/requests/{request_id}/corrections", body), as_json)


@usage.command("corrections")
@click.argument("request_id")
@admin_options
def usage_corrections(request_id: str, url: str, as_json: bool) -> None:
    """How a request was put right, and its replacement, and so on."""
    with AdminClient(url) as client:
        print_rows(client.pages(f"/usage/requests/{request_id}/corrections"), CORRECTION_COLUMNS, as_json)


@usage.command("what-if")
@click.option("--start", required=True, help="RFC 3339 time.")
@click.option("--end", required=True, help="RFC 3339 time; up to 92 days later.")
@click.option("--team", "team_id", help="Only this team.")
@click.option("--model", help="Only this model.")
@click.option("--version", type=int, help="Another version of the price book.")
@click.option("--priced-at", help="All prices as they are in force at this time.")
@click.option("--draft", "draft_id", type=int, help="A draft's prices, as if they had held.")
@click.option("--base", help="With --quote and --rate or --bps: other settlement terms.")
@click.option("--quote")
@click.option("--rate", "fixed", help="A fixed rate from --base to --quote.")
@click.option("--bps", type=int, help="Or the market's rate plus this many basis points.")
@click.option("--route", help="PROVIDER/MODEL, as if it had answered.")
@admin_options
def usage_what_if(
    start: str,
    end: str,
    team_id: str | None,
    model: str | None,
    version: int | None,
    priced_at: str | None,
    draft_id: int | None,
    base: str | None,
    quote: str | None,
    fixed: str | None,
    bps: int | None,
    route: str | None,
    url: str,
    as_json: bool,
) -> None:
    """What a past range would have cost under another book, other terms or another route. Nothing is written."""
    terms = given(base=base, quote=quote, rate=fixed, bps=bps)
    if terms:
        if base is None or quote is None or (fixed is None) == (bps is None):
            raise click.UsageError("other terms need --base, --quote and exactly one of --rate and --bps")
        terms["policy"] = "fixed" if fixed is not None else "market_plus_bps"
    provider, slash, served = (route or "").partition("/")
    if route is not None and not (provider and slash and served):
        raise click.UsageError("--route must be PROVIDER/MODEL")
    body = given(
        start=start,
        end=end,
        team_id=team_id,
        model=model,
        version=version,
        priced_at=priced_at,
        draft_id=draft_id,
        terms=terms or None,
        route={"provider": provider, "model": served} if route else None,
    )
    with AdminClient(url) as client:
        print_rows(client.post("/what-if", body)["data"], WHAT_IF_COLUMNS, as_json)


@usage.command("rerate")
@click.option("--start", required=True, help="RFC 3339 time: requests made from then on.")
@click.option("--end", required=True, help="RFC 3339 time: and before then; up to 92 days later.")
@click.option("--team", "team_id", help="Only this team.")
@click.option("--model", help="Only this model.")
@click.option("--provider", help="Only what this provider served.")
@click.option("--apply", "plan", help="Enter what was looked at: the plan that the look has named.")
@click.option("--reason", help="With --apply: it stands in the books for ever.")
@click.option("--actor", help="With --apply: who did it (default: admin).")
@admin_options
def usage_rerate(
    start: str,
    end: str,
    team_id: str | None,
    model: str | None,
    provider: str | None,
    plan: str | None,
    reason: str | None,
    actor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Rate a past range again with today's prices, rates and terms. Without --apply nothing is written."""
    asked = given(start=start, end=end, team_id=team_id, model=model, provider=provider)
    if plan is not None:
        if reason is None:
            raise click.UsageError("--apply needs --reason")
        with AdminClient(url, timeout_s=600) as client:
            body = given(**asked, plan=plan, reason=reason, actor=actor)
            print_object(client.post("/usage/rerating/apply", body), as_json)
        return
    with AdminClient(url, timeout_s=600) as client:
        answer = client.post("/usage/rerating", asked)
    if as_json:
        print_object(answer, as_json)
        return
    print_object({name: value for name, value in answer.items() if name != "data"}, as_json)
    print_rows(answer["data"], WHAT_IF_COLUMNS, as_json)


@usage.command("break-even")
@click.argument("provider")
@click.option("--start", help="RFC 3339 time (default: 7 days ago).")
@click.option("--end", help="RFC 3339 time (default: now).")
@click.option("--cost-per-hour", help="What an hour of the engine costs (default: its setting, or its price per hour).")
@click.option("--currency", help="Of --cost-per-hour.")
@admin_options
def usage_break_even(
    provider: str,
    start: str | None,
    end: str | None,
    cost_per_hour: str | None,
    currency: str | None,
    url: str,
    as_json: bool,
) -> None:
    """What an engine paid by the hour costs per million tokens, beside every price in the book."""
    asked = {
        "provider": provider,
        "start": start,
        "end": end,
        "cost_per_hour": cost_per_hour,
        "currency": currency,
    }
    with AdminClient(url) as client:
        answer = client.get("/reports/break-even", asked)
    if as_json:
        print_object(answer, as_json)
        return
    print_object({name: value for name, value in answer.items() if name != "upstreams"}, as_json)
    print_rows(answer["upstreams"], UPSTREAM_COLUMNS, as_json)


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
