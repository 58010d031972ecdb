"""`metergate team|budget`: who pays, and how much may be spent."""

from __future__ import annotations

import click

from gateway.cli.admin_client import AdminClient
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import given

TEAM_COLUMNS = ("id", "name", "settlement_currency", "billing", "credit_limit", "lost_charge", "timezone", "created_at")
BUDGET_COLUMNS = (
    "id", "scope", "scope_id", "amount", "spent", "reserved", "remaining", "currency", "period", "timezone", "resets_at", "hard",
)  # fmt: skip


@click.group()
def team() -> None:
    """Teams."""


@team.command("create")
@click.argument("name")
@click.option("--currency", required=True, help="Settlement currency, such as USD or CNY.")
@click.option("--billing", type=click.Choice(["postpaid", "prepaid"]), help="Default: postpaid.")
@click.option("--credit-limit", help="How far below zero a prepaid balance may go, as a decimal.")
@click.option(
    "--lost-charge",
    type=click.Choice(["none", "input", "reservation"]),
    help="What is paid for a request whose outcome was lost.",
)
@click.option("--timezone", help="IANA name: where the months of its statements begin (default: UTC).")
@admin_options
def team_create(
    name: str,
    currency: str,
    billing: str | None,
    credit_limit: str | None,
    lost_charge: str | None,
    timezone: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Make a team that settles in one currency."""
    body = given(
        name=name,
        settlement_currency=currency,
        billing=billing,
        credit_limit=credit_limit,
        lost_charge=lost_charge,
        timezone=timezone,
    )
    with AdminClient(url) as client:
        print_object(client.post("/teams", body), as_json)


@team.command("list")
@admin_options
def team_list(url: str, as_json: bool) -> None:
    """All teams."""
    with AdminClient(url) as client:
        print_rows(client.pages("/teams"), TEAM_COLUMNS, as_json)


@team.command("show")
@click.argument("team_id")
@admin_options
def team_show(team_id: str, url: str, as_json: bool) -> None:
    """One team."""
    with AdminClient(url) as client:
        print_object(client.get(f"/teams/{team_id}"), as_json)


@team.command("edit")
@click.argument("team_id")
@click.option("--name")
@click.option("--billing", type=click.Choice(["postpaid", "prepaid"]))
@click.option("--credit-limit", help="How far below zero a prepaid balance may go; `none` for no such limit.")
@click.option("--lost-charge", type=click.Choice(["none", "input", "reservation"]))
@click.option("--timezone", help="IANA name: where the months of its statements begin.")
@admin_options
def team_edit(
    team_id: str,
    name: str | None,
    billing: str | None,
    credit_limit: str | None,
    lost_charge: str | None,
    timezone: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Change what is named and nothing else. A team's currency never changes."""
    body = given(name=name, billing=billing, lost_charge=lost_charge, timezone=timezone)
    if credit_limit is not None:
        body["credit_limit"] = None if credit_limit == "none" else credit_limit
    with AdminClient(url) as client:
        print_object(client.patch(f"/teams/{team_id}", body), as_json)


@click.group()
def budget() -> None:
    """Budgets."""


@budget.command("create")
@click.argument("scope", type=click.Choice(["team", "key", "all"]))
@click.argument("amount")
@click.argument("currency")
@click.argument("period", type=click.Choice(["day", "week", "month", "total"]))
@click.option("--id", "scope_id", help="The team or key that the budget is for.")
@click.option("--timezone", default="UTC", show_default=True, help="Where a day, week or month begins.")
@click.option("--hard/--soft", default=True, show_default=True, help="Refuse what goes beyond, or only show it.")
@click.option(
    "--threshold", "thresholds", type=int, multiple=True,
    help="A percentage at which it is told of (may be given again; 0: at none; default: limits.budget_thresholds).",
)  # fmt: skip
@admin_options
def budget_create(
    scope: str,
    amount: str,
    currency: str,
    period: str,
    scope_id: str | None,
    timezone: str,
    hard: bool,
    thresholds: tuple[int, ...],
    url: str,
    as_json: bool,
) -> None:
    """Bound what a team, a key or everything may spend: `budget create team 100.00 CNY month --id team_…`."""
    body: dict[str, object] = {
        "scope": scope,
        "scope_id": scope_id,
        "amount": amount,
        "currency": currency,
        "period": period,
        "timezone": timezone,
        "hard": hard,
        "thresholds": [each for each in thresholds if each] if thresholds else None,
    }
    with AdminClient(url) as client:
        print_object(client.post("/budgets", body), as_json)


@budget.command("list")
@click.option("--team", "team_id", help="Only those over this team and its keys.")
@click.option("--ended", is_flag=True, help="Those that have ended too.")
@admin_options
def budget_list(team_id: str | None, ended: bool, url: str, as_json: bool) -> None:
    """All budgets, with what is spent and reserved in their present periods."""
    asked = given(team_id=team_id, ended="true" if ended else None)
    with AdminClient(url) as client:
        print_rows(client.pages("/budgets", asked), BUDGET_COLUMNS, as_json)


@budget.command("show")
@click.argument("budget_id", type=int)
@admin_options
def budget_show(budget_id: int, url: str, as_json: bool) -> None:
    """One budget, with what is left of it now."""
    with AdminClient(url) as client:
        print_object(client.get(f"/budgets/{budget_id}"), as_json)


@budget.command("end")
@click.argument("budget_id", type=int)
@admin_options
def budget_end(budget_id: int, url: str, as_json: bool) -> None:
    """End a budget. To change one, end it and create another."""
    with AdminClient(url) as client:
        print_object(client.post(f"/budgets/{budget_id}/end", {}), as_json)
