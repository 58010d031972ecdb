"""`metergate token|audit|routes`: who may use the admin API, and what they did."""

from __future__ import annotations

import click

from gateway.cli.admin_client import AdminClient
from gateway.cli.errors import CliError
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import given

TOKEN_COLUMNS = ("id", "name", "role", "team_id", "created_at", "expires_at", "revoked_at")
ROUTE_COLUMNS = (
    "model",
    "provider",
    "provider_model",
    "health",
    "in_flight",
    "retry_in_ms",
    "first_content_ms",
    "priced",
    "strategy",
    "weight",
    "price_list",
)
AUDIT_COLUMNS = ("sequence", "at", "actor", "role", "address", "action", "target")
ROLES = ("owner", "billing", "operator", "viewer", "team_admin")


@click.group()
def token() -> None:
    """Role tokens: who may use the admin API and the dashboard."""


@token.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True)
@click.option("--team", "team_id", help="The team of a team_admin.")
@click.option("--expires-at", help="RFC 3339 time after which the token stops.")
@admin_options
def token_create(name: str, role: str, team_id: str | None, expires_at: str | None, url: str, as_json: bool) -> None:
    """Make a token. It is shown now and never again; NAME stands in the audit log."""
    body = given(name=name, role=role, team_id=team_id, expires_at=expires_at)
    with AdminClient(url) as client:
        print_object(client.post("/tokens", body), as_json)


@token.command("list")
@admin_options
def token_list(url: str, as_json: bool) -> None:
    """All tokens, the ended ones too."""
    with AdminClient(url) as client:
        print_rows(client.pages("/tokens"), TOKEN_COLUMNS, as_json)


@token.command("show")
@click.argument("token_id")
@admin_options
def token_show(token_id: str, url: str, as_json: bool) -> None:
    """One token, without its secret."""
    with AdminClient(url) as client:
        print_object(client.get(f"/tokens/{token_id}"), as_json)


@token.command("whoami")
@admin_options
def token_whoami(url: str, as_json: bool) -> None:
    """Whose credential the shell sends, and its role."""
    with AdminClient(url) as client:
        print_object(client.get("/me"), as_json)


@token.command("revoke")
@click.argument("token_id")
@admin_options
def token_revoke(token_id: str, url: str, as_json: bool) -> None:
    """End a token for good, and the dashboard sessions opened with it."""
    with AdminClient(url) as client:
        print_object(client.post(f"/tokens/{token_id}/revoke", {}), as_json)


@click.command()
@admin_options
def routes(url: str, as_json: bool) -> None:
    """Every route with its live health: up, saturated, tripped (its circuit is open), probing or starting."""
    with AdminClient(url) as client:
        print_rows(client.get("/routes")["data"], ROUTE_COLUMNS, as_json)


@click.group()
def audit() -> None:
    """The audit log: every admin action, chained by hashes."""


@audit.command("list")
@click.option("--actor", help="Only what this one did.")
@click.option("--target", help="Only what was done to this, such as /keys/key_….")
@click.option("--start", help="RFC 3339 time.")
@click.option("--end", help="RFC 3339 time.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@admin_options
def audit_list(
    actor: str | None, target: str | None, start: str | None, end: str | None, limit: int, url: str, as_json: bool
) -> None:
    """Actions, newest first; --json has what stood there before and after."""
    asked = given(actor=actor, target=target, start=start, end=end)
    with AdminClient(url) as client:
        print_rows(client.pages("/audit", asked, limit=limit), AUDIT_COLUMNS, as_json)


@audit.command("verify")
@click.option("--hash", "expected", help="The hash that an earlier check printed for the same number of entries.")
@admin_options
def audit_verify(expected: str | None, url: str, as_json: bool) -> None:
    """Read the whole chain; exit status 1 and the first fault when an entry was changed, removed or slipped in."""
    with AdminClient(url) as client:
        found = client.get("/audit/check")
    print_object(found, as_json)
    if not found["whole"]:
        raise CliError(f"the audit log is not whole: {found['broken']}")
    if expected is not None and expected != found["hash"]:
        raise CliError(f"the chain ends in another hash than {expected}")
