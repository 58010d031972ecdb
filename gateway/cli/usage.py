"""`metergate usage report|requests|show`: what was used and what it cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from gateway.cli.admin_client import AdminClient
from gateway.cli.output import admin_options, print_object, print_rows

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
)
REQUEST_COLUMNS = (
    "id",
    "team_id",
    "model",
    "provider",
    "status",
    "tokens.input",
    "tokens.cache_read",
    "tokens.output",
    "list",
    "settled",
    "latency_ms",
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
    "--group-by", default="team,model", show_default=True, help="Of team, key, model, provider, provider_model."
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


@usage.command("requests")
@click.option("--team", "team_id")
@click.option("--key", "key_id")
@click.option("--model")
@click.option("--status", type=click.Choice(["completed", "incomplete", "cancelled", "failed", "lost"]))
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@admin_options
def usage_requests(
    team_id: str | None,
    key_id: str | None,
    model: str | None,
    status: str | None,
    limit: int,
    url: str,
    as_json: bool,
) -> None:
    """Single requests, the newest first."""
    asked = {"team_id": team_id, "key_id": key_id, "model": model, "status": status}
    with AdminClient(url) as client:
        print_rows(client.pages("/usage/requests", asked, limit=limit), REQUEST_COLUMNS, as_json)


@usage.command("show")
@click.argument("request_id")
@admin_options
def usage_show(request_id: str, url: str, as_json: bool) -> None:
    """One request, with the price rows and rates it was computed from."""
    with AdminClient(url) as client:
        print_object(client.get(f"/usage/requests/{request_id}"), as_json)


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
