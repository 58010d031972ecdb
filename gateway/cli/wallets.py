"""`metergate wallet …`: balances, payments, codes, adjustments."""

from __future__ import annotations

import click

from gateway.cli.admin_client import AdminClient
from gateway.cli.output import admin_options, print_object, print_rows
from gateway.cli.parse import given

WALLET_COLUMNS = ("team_id", "billing", "balance", "currency", "credit_limit", "available", "low_balance", "is_low")
ENTRY_COLUMNS = ("id", "at", "kind", "amount", "currency", "balance", "external_id", "method", "reason", "actor")
EVENT_COLUMNS = ("id", "at", "kind", "balance", "threshold", "currency")
BATCH_COLUMNS = (
    "id",
    "amount",
    "currency",
    "count",
    "redeemed",
    "redeem_until",
    "credit_expires_at",
    "note",
    "ended_at",
)
CODE_COLUMNS = ("hint", "team_id", "redeemed_at", "entry_id")
HELP_EXPIRES = "RFC 3339 time at which what is left of this credit expires."
HELP_ACTOR = "Who did it (default: admin)."


@click.group()
def wallet() -> None:
    """Wallets: what teams have paid in, less what they used."""


@wallet.command("list")
@click.option("--billing", type=click.Choice(["postpaid", "prepaid"]))
@click.option("--low", is_flag=True, help="Only those below their threshold.")
@admin_options
def wallet_list(billing: str | None, low: bool, url: str, as_json: bool) -> None:
    """Every team's balance."""
    asked = {"billing": billing, "low": "true" if low else None}
    with AdminClient(url) as client:
        print_rows(client.pages("/wallets", asked), WALLET_COLUMNS, as_json)


@wallet.command("show")
@click.argument("team_id")
@admin_options
def wallet_show(team_id: str, url: str, as_json: bool) -> None:
    """A team's balance."""
    with AdminClient(url) as client:
        print_object(client.get(f"/wallets/{team_id}"), as_json)


@wallet.command("entries")
@click.argument("team_id")
@click.option("--kind", type=click.Choice(["top_up", "code", "adjustment", "usage", "reversal", "expiry"]))
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@admin_options
def wallet_entries(team_id: str, kind: str | None, limit: int, url: str, as_json: bool) -> None:
    """What moved the balance, newest first. Usage is one entry per quarter-hour."""
    with AdminClient(url) as client:
        print_rows(client.pages(f"/wallets/{team_id}/entries", {"kind": kind}, limit=limit), ENTRY_COLUMNS, as_json)


@wallet.command("top-up")
@click.argument("team_id")
@click.argument("amount")
@click.argument("currency")
@click.option("--external-id", required=True, help="The payment's own id: said again, it counts once.")
@click.option("--method", required=True, help="How it was paid, such as bank_transfer.")
@click.option("--rate", help="Wallet units for one unit paid, where it was paid in another currency.")
@click.option("--reason")
@click.option("--actor", help=HELP_ACTOR)
@click.option("--expires-at", help=HELP_EXPIRES)
@admin_options
def wallet_top_up(
    team_id: str,
    amount: str,
    currency: str,
    external_id: str,
    method: str,
    rate: str | None,
    reason: str | None,
    actor: str | None,
    expires_at: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Credit a payment: `wallet top-up team_… 500.00 CNY --external-id wire-4711 --method bank_transfer`."""
    body = given(
        external_id=external_id,
        amount=amount,
        currency=currency,
        method=method,
        rate=rate,
        reason=reason,
        actor=actor,
        expires_at=expires_at,
    )
    with AdminClient(url) as client:
        print_object(client.post(f"/wallets/{team_id}/top-ups", body), as_json)


@wallet.command("redeem")
@click.argument("team_id")
@click.argument("code")
@click.option("--actor", help=HELP_ACTOR)
@admin_options
def wallet_redeem(team_id: str, code: str, actor: str | None, url: str, as_json: bool) -> None:
    """Redeem a code for a team."""
    with AdminClient(url) as client:
        print_object(client.post(f"/wallets/{team_id}/redemptions", given(code=code, actor=actor)), as_json)


@wallet.command("adjust", context_settings={"ignore_unknown_options": True})
@click.argument("team_id")
@click.argument("amount")
@click.option("--reason", required=True, help="It stands in the books for ever.")
@click.option("--actor", help=HELP_ACTOR)
@click.option("--external-id", help="Said again, it counts once.")
@click.option("--expires-at", help=HELP_EXPIRES)
@admin_options
def wallet_adjust(
    team_id: str,
    amount: str,
    reason: str,
    actor: str | None,
    external_id: str | None,
    expires_at: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Credit a wallet, or debit it by a negative amount: `wallet adjust team_… -7.50 --reason "late fee"`."""
    body = given(amount=amount, reason=reason, actor=actor, external_id=external_id, expires_at=expires_at)
    with AdminClient(url) as client:
        print_object(client.post(f"/wallets/{team_id}/adjustments", body), as_json)


@wallet.command("reverse")
@click.argument("team_id")
@click.argument("entry_id", type=int)
@click.option("--reason", required=True)
@click.option("--actor", help=HELP_ACTOR)
@admin_options
def wallet_reverse(team_id: str, entry_id: int, reason: str, actor: str | None, url: str, as_json: bool) -> None:
    """Take a top-up, code or adjustment back, by a linked entry at the rate it came in at."""
    with AdminClient(url) as client:
        path = f"/wallets/{team_id}/entries/{entry_id}/reverse"
        print_object(client.post(path, given(reason=reason, actor=actor)), as_json)


@wallet.command("alert")
@click.argument("team_id")
@click.argument("amount", required=False)
@admin_options
def wallet_alert(team_id: str, amount: str | None, url: str, as_json: bool) -> None:
    """Say below which balance an event is due; without an amount, never."""
    with AdminClient(url) as client:
        print_object(client.patch(f"/wallets/{team_id}", {"low_balance": amount}), as_json)


@wallet.command("events")
@click.argument("team_id")
@admin_options
def wallet_events(team_id: str, url: str, as_json: bool) -> None:
    """Falls of the balance below its threshold, and returns above it."""
    with AdminClient(url) as client:
        print_rows(client.pages(f"/wallets/{team_id}/events"), EVENT_COLUMNS, as_json)


@wallet.command("check")
@click.argument("team_id")
@admin_options
def wallet_check(team_id: str, url: str, as_json: bool) -> None:
    """Add a wallet up again; ends with status 1 where the figures part."""
    with AdminClient(url) as client:
        found = client.get(f"/wallets/{team_id}/check")
        print_object(found, as_json)
    if not found["agrees"]:
        raise click.exceptions.Exit(1)


@wallet.group("codes")
def wallet_codes() -> None:
    """Redemption codes."""


@wallet_codes.command("create")
@click.argument("amount")
@click.argument("currency")
@click.option("--count", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--redeem-until", help="RFC 3339 time after which the codes are worth nothing.")
@click.option("--credit-expires-at", help=HELP_EXPIRES)
@click.option("--note")
@click.option("--actor", help=HELP_ACTOR)
@admin_options
def codes_create(
    amount: str,
    currency: str,
    count: int,
    redeem_until: str | None,
    credit_expires_at: str | None,
    note: str | None,
    actor: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Make a batch of codes. They are shown now and never again."""
    body = given(
        amount=amount,
        currency=currency,
        count=count,
        redeem_until=redeem_until,
        credit_expires_at=credit_expires_at,
        note=note,
        actor=actor,
    )
    with AdminClient(url) as client:
        print_object(client.post("/redemption-codes", body), as_json)


@wallet_codes.command("list")
@click.argument("batch_id", type=int, required=False)
@admin_options
def codes_list(batch_id: int | None, url: str, as_json: bool) -> None:
    """All batches; with a batch, which of its codes were redeemed."""
    with AdminClient(url) as client:
        if batch_id is None:
            print_rows(client.pages("/redemption-codes"), BATCH_COLUMNS, as_json)
        else:
            print_rows(client.pages(f"/redemption-codes/{batch_id}/codes"), CODE_COLUMNS, as_json)


@wallet_codes.command("show")
@click.argument("batch_id", type=int)
@admin_options
def codes_show(batch_id: int, url: str, as_json: bool) -> None:
    """One batch: how many of its codes were redeemed, and until when they can be."""
    with AdminClient(url) as client:
        print_object(client.get(f"/redemption-codes/{batch_id}"), as_json)


@wallet_codes.command("end")
@click.argument("batch_id", type=int)
@admin_options
def codes_end(batch_id: int, url: str, as_json: bool) -> None:
    """End a batch: what is not redeemed yet never will be."""
    with AdminClient(url) as client:
        print_object(client.post(f"/redemption-codes/{batch_id}/end", {}), as_json)
