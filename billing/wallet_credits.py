"""Money into wallets and out of them again: top-ups, adjustments, and their reversal at what they came in at."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.checks import check_text, parse_field
from billing.currencies import check_currency
from billing.errors import Conflict, InvalidWallet, NotFound
from billing.money import INT64_MAX, NANO, PICO, Money, divide_half_even, format_scaled
from billing.times import check_time, now_us
from billing.wallet_expiry import expire_credits
from billing.wallet_tables import wallet_entries
from billing.wallets import Entry, entry_of, lock_wallet, post, wallet_team

_SAME_TOP_UP: Final = ("team_id", "method", "paid_currency", "paid_nano", "rate_pico", "reason", "expires_at_us")
_SAME_ADJUSTMENT: Final = ("team_id", "amount_nano", "reason", "expires_at_us")
_REVERSIBLE: Final = ("top_up", "code", "adjustment")


async def top_up(
    connection: AsyncConnection,
    *,
    team_id: str,
    external_id: str,
    amount: str,
    currency: str,
    method: str,
    actor: str,
    rate: str | None = None,
    reason: str | None = None,
    expires_at_us: int | None = None,
) -> Entry:
    """Credit a payment, once per `external_id` whoever says it again.

    The same id with another team, amount, currency, method, rate, reason or expiry is a `Conflict`. What was paid in another
    currency than the wallet's needs the `rate` it came in at (wallet units for one paid unit). Raises `InvalidWallet`,
    `InvalidAmount`, `InvalidCurrency`, `InvalidTime` or `NotFound`.
    """
    check_text(external_id, "external_id", InvalidWallet)
    check_text(method, "method", InvalidWallet)
    check_text(actor, "actor", InvalidWallet)
    if reason is not None:
        check_text(reason, "reason", InvalidWallet)
    check_currency(currency, "currency")
    paid_nano = _positive(amount)
    team = await wallet_team(connection, team_id)
    rate_pico = _rate_to(team.settlement_currency, currency, rate)
    credited_nano = _credited(paid_nano, rate_pico)
    _check_expiry(expires_at_us)
    await lock_wallet(connection, team_id, team.settlement_currency)
    fields = {
        "external_id": external_id,
        "method": method,
        "paid_currency": currency,
        "paid_nano": paid_nano,
        "rate_pico": rate_pico,
        "reason": reason,
        "actor": actor,
        "expires_at_us": expires_at_us,
    }
    standing = await _standing(connection, external_id, "top_up", {"team_id": team_id, **fields}, _SAME_TOP_UP)
    if standing is not None:
        return standing
    return await _post_once(connection, team_id, team.settlement_currency, "top_up", credited_nano, fields)


async def adjust(
    connection: AsyncConnection,
    *,
    team_id: str,
    amount: str,
    reason: str,
    actor: str,
    currency: str | None = None,
    external_id: str | None = None,
    expires_at_us: int | None = None,
) -> Entry:
    """Credit (or, with a negative amount, debit) a wallet for a stated reason. With an `external_id` it is entered once.

    Raises `InvalidWallet`, `InvalidAmount`, `InvalidTime`, `Conflict` or `NotFound`.
    """
    check_text(reason, "reason", InvalidWallet)
    check_text(actor, "actor", InvalidWallet)
    if external_id is not None:
        check_text(external_id, "external_id", InvalidWallet)
    amount_nano = parse_field(amount, NANO, "amount")
    if amount_nano == 0:
        raise InvalidWallet("amount: an adjustment of nothing", field="amount")
    if amount_nano < 0 and expires_at_us is not None:
        raise InvalidWallet("expires_at: only a credit can expire", field="expires_at")
    _check_expiry(expires_at_us)
    team = await wallet_team(connection, team_id)
    if currency is not None and currency != team.settlement_currency:
        raise InvalidWallet(
            f"currency: this wallet stands in {team.settlement_currency}, not in {currency}", field="currency"
        )
    await lock_wallet(connection, team_id, team.settlement_currency)
    fields = {"external_id": external_id, "reason": reason, "actor": actor, "expires_at_us": expires_at_us}
    if external_id is not None:
        asked = {"team_id": team_id, "amount_nano": amount_nano, **fields}
        standing = await _standing(connection, external_id, "adjustment", asked, _SAME_ADJUSTMENT)
        if standing is not None:
            return standing
    return await _post_once(connection, team_id, team.settlement_currency, "adjustment", amount_nano, fields)


async def reverse_entry(connection: AsyncConnection, *, team_id: str, entry_id: int, reason: str, actor: str) -> Entry:
    """Take a top-up, code or adjustment back by a linked entry of its own amount: at the rate it came in at, whatever the rate
    is today. Once; what of it had expired is given back first. Raises `NotFound`, `Conflict` or `InvalidWallet`."""
    check_text(reason, "reason", InvalidWallet)
    check_text(actor, "actor", InvalidWallet)
    columns = wallet_entries.c
    query = select(wallet_entries).where(columns.id == entry_id, columns.team_id == team_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise NotFound(f"no entry {entry_id} in the wallet of team {team_id!r}", field="id")
    entry = entry_of(row)
    if entry.kind not in _REVERSIBLE:
        advice = "; correct the usage row" if entry.kind == "usage" else ""
        raise InvalidWallet(f"id: an entry of kind {entry.kind} cannot be reversed{advice}", field="id")
    await lock_wallet(connection, team_id, entry.currency)
    done = await connection.scalar(select(columns.id).where(columns.reverses_id == entry_id))
    if done is not None:
        raise Conflict(f"entry {entry_id} was reversed already, by entry {done}", field="id")
    reversal = await post(
        connection,
        team_id=team_id,
        currency=entry.currency,
        kind="reversal",
        amount_nano=-entry.amount_nano,
        reverses_id=entry_id,
        method=entry.method,
        paid_currency=entry.paid_currency,
        paid_nano=None if entry.paid_nano is None else -entry.paid_nano,
        rate_pico=entry.rate_pico,
        reason=reason,
        actor=actor,
    )
    await expire_credits(connection, team_id, entry.currency, now_us())
    return reversal


async def _post_once(
    connection: AsyncConnection, team_id: str, currency: str, kind: str, amount_nano: int, fields: dict[str, Any]
) -> Entry:
    try:
        return await post(connection, team_id=team_id, currency=currency, kind=kind, amount_nano=amount_nano, **fields)
    except IntegrityError as error:  # entered for another wallet at the same moment
        raise Conflict(
            f"external_id: {fields['external_id']!r} stands in another wallet", field="external_id"
        ) from error


async def _standing(
    connection: AsyncConnection, external_id: str, kind: str, asked: dict[str, Any], same: tuple[str, ...]
) -> Entry | None:
    row = (
        await connection.execute(select(wallet_entries).where(wallet_entries.c.external_id == external_id))
    ).one_or_none()
    if row is None:
        return None
    standing = entry_of(row)
    if standing.kind != kind:
        raise Conflict(f"external_id: {external_id!r} is another kind of entry ({standing.id})", field="external_id")
    for name in same:
        if getattr(standing, name) != asked[name]:
            raise Conflict(
                f"external_id: {external_id!r} was entered before with another {_WORDS.get(name, name)} "
                f"({_shown(standing, name)}, entry {standing.id})",
                field="external_id",
            )
    return standing


_WORDS: Final = {
    "team_id": "team",
    "paid_currency": "currency",
    "paid_nano": "amount",
    "amount_nano": "amount",
    "rate_pico": "rate",
    "expires_at_us": "expires_at",
}


def _shown(entry: Entry, name: str) -> str:
    value = getattr(entry, name)
    if name in ("paid_nano", "amount_nano"):
        return Money(entry.paid_currency or entry.currency, value).amount
    if name == "rate_pico" and value is not None:
        return format_scaled(value, PICO)
    return str(value)


def _positive(amount: str) -> int:
    nano = parse_field(amount, NANO, "amount")
    if nano <= 0:
        raise InvalidWallet("amount: must be more than zero (take money out by an adjustment)", field="amount")
    return nano


def _rate_to(wallet_currency: str, paid_currency: str, rate: str | None) -> int | None:
    if paid_currency == wallet_currency:
        if rate is not None:
            raise InvalidWallet(f"rate: the wallet stands in {wallet_currency} itself; leave it out", field="rate")
        return None
    if rate is None:
        raise InvalidWallet(
            f"currency: this wallet stands in {wallet_currency}; pay in it, or give the rate "
            f"({wallet_currency} for one {paid_currency})",
            field="currency",
        )
    rate_pico = parse_field(rate, PICO, "rate")
    if rate_pico <= 0:
        raise InvalidWallet("rate: must be more than zero", field="rate")
    return rate_pico


def _credited(paid_nano: int, rate_pico: int | None) -> int:
    if rate_pico is None:
        return paid_nano
    credited = divide_half_even(paid_nano * rate_pico, PICO)
    if not 0 < credited <= INT64_MAX:
        raise InvalidWallet("amount: is nothing, or beyond 64 bits, in the wallet's currency", field="amount")
    return credited


def _check_expiry(expires_at_us: int | None) -> None:
    if expires_at_us is not None and check_time(expires_at_us, "expires_at") <= now_us():
        raise InvalidWallet("expires_at: lies in the past", field="expires_at")
