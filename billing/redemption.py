"""Redemption codes: credit that somebody hands out on paper. Made in batches, shown once, redeemed once.

Only a code's SHA-256 is kept. One conditional update claims it: of fifty who try at once, one succeeds.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.checks import check_text, parse_field
from billing.currencies import check_currency
from billing.errors import Conflict, InvalidWallet, NotFound
from billing.money import NANO
from billing.times import check_time, format_time, now_us
from billing.wallet_tables import redemption_batches, redemption_codes
from billing.wallets import Entry, post, wallet_team

MAX_CODES: Final = 10_000
PREFIX: Final = "MG"
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no letter that a reader takes for another."""
_GROUPS: Final = 4
_GROUP_LETTERS: Final = 5
_MISREAD: Final = str.maketrans("OIL", "011")


@dataclass(frozen=True, slots=True)
class Batch:
    """`redeem_until_us` is how long its codes can be redeemed, `credit_expires_at_us` how long the credit lasts then."""

    id: int
    currency: str
    amount_nano: int
    codes: int
    redeem_until_us: int | None
    credit_expires_at_us: int | None
    note: str | None
    actor: str
    created_at_us: int
    ended_at_us: int | None
    redeemed: int = 0


@dataclass(frozen=True, slots=True)
class Code:
    """A code as the books know it: its last four characters, and who redeemed it when into which entry."""

    digest: str
    batch_id: int
    hint: str
    team_id: str | None
    redeemed_at_us: int | None
    entry_id: int | None


async def create_codes(
    connection: AsyncConnection,
    *,
    count: int,
    amount: str,
    currency: str,
    actor: str,
    redeem_until_us: int | None = None,
    credit_expires_at_us: int | None = None,
    note: str | None = None,
) -> tuple[Batch, list[str]]:
    """A batch and its codes, in clear this once. Raises `InvalidWallet`, `InvalidAmount`, `InvalidCurrency`, `InvalidTime`."""
    if not 1 <= count <= MAX_CODES:
        raise InvalidWallet(f"count: {count} is outside 1..{MAX_CODES}", field="count")
    check_currency(currency, "currency")
    check_text(actor, "actor", InvalidWallet)
    if note is not None:
        check_text(note, "note", InvalidWallet)
    amount_nano = parse_field(amount, NANO, "amount")
    if amount_nano <= 0:
        raise InvalidWallet("amount: must be more than zero", field="amount")
    for field, at_us in (("redeem_until", redeem_until_us), ("credit_expires_at", credit_expires_at_us)):
        if at_us is not None and check_time(at_us, field) <= now_us():
            raise InvalidWallet(f"{field}: lies in the past", field=field)
    values = {
        "currency": currency,
        "amount_nano": amount_nano,
        "codes": count,
        "redeem_until_us": redeem_until_us,
        "credit_expires_at_us": credit_expires_at_us,
        "note": note,
        "actor": actor,
        "created_at_us": now_us(),
    }
    made = await connection.execute(insert(redemption_batches).values(values).returning(redemption_batches))
    batch = Batch(**made.one()._mapping)
    codes = [_new_code() for _ in range(count)]
    rows = [{"digest": digest_of(code), "batch_id": batch.id, "hint": code[-4:]} for code in codes]
    await connection.execute(insert(redemption_codes), rows)
    return batch, codes


async def redeem(connection: AsyncConnection, *, team_id: str, code: str, actor: str) -> Entry:
    """Credit a code to a team's wallet, once for ever.

    Raises `InvalidWallet` for a code that nobody made, `Conflict` for one that was redeemed or is over, and `NotFound`.
    """
    check_text(actor, "actor", InvalidWallet)
    team = await wallet_team(connection, team_id)
    digest, at_us = digest_of(code), now_us()
    batch_id = await connection.scalar(_claim(digest, team_id, team.settlement_currency, at_us))
    if batch_id is None:
        raise await _refusal(connection, digest, team.settlement_currency, at_us)
    batches = redemption_batches
    batch = Batch(**(await connection.execute(select(batches).where(batches.c.id == batch_id))).one()._mapping)
    if batch.credit_expires_at_us is not None and batch.credit_expires_at_us <= at_us:
        raise Conflict("code: the credit of this code has expired", field="code")
    entry = await post(
        connection,
        team_id=team_id,
        currency=batch.currency,
        kind="code",
        amount_nano=batch.amount_nano,
        reason=f"redemption code …{code[-4:].upper()} of batch {batch.id}",
        actor=actor,
        expires_at_us=batch.credit_expires_at_us,
    )
    codes = redemption_codes
    await connection.execute(update(codes).where(codes.c.digest == digest).values(entry_id=entry.id))
    return entry


async def end_batch(connection: AsyncConnection, batch_id: int) -> Batch:
    """No further code of this batch can be redeemed; what was redeemed stays. Ending it twice changes nothing."""
    batches = redemption_batches
    await connection.execute(
        update(batches).where(batches.c.id == batch_id, batches.c.ended_at_us.is_(None)).values(ended_at_us=now_us())
    )
    batch = await get_batch(connection, batch_id)
    if batch is None:
        raise NotFound(f"no batch of redemption codes {batch_id}", field="id")
    return batch


async def get_batch(connection: AsyncConnection, batch_id: int) -> Batch | None:
    found = await list_batches(connection, after=batch_id - 1, limit=1)
    return found[0] if found and found[0].id == batch_id else None


async def list_batches(connection: AsyncConnection, *, after: int = 0, limit: int) -> list[Batch]:
    """Batches by id from behind `after`, each with how many of its codes were redeemed."""
    batches, codes = redemption_batches.c, redemption_codes.c
    redeemed = (
        select(func.count())
        .where(codes.batch_id == batches.id, codes.team_id.is_not(None))
        .correlate(redemption_batches)
        .scalar_subquery()
    )
    query = (
        select(redemption_batches, redeemed.label("redeemed"))
        .where(batches.id > after)
        .order_by(batches.id)
        .limit(limit)
    )
    return [Batch(**row._mapping) for row in await connection.execute(query)]


async def list_codes(connection: AsyncConnection, batch_id: int, *, after: str = "", limit: int) -> list[Code]:
    """The codes of a batch by digest, from behind the digest `after`."""
    columns = redemption_codes.c
    query = (
        select(redemption_codes)
        .where(columns.batch_id == batch_id, columns.digest > after)
        .order_by(columns.digest)
        .limit(limit)
    )
    return [Code(**row._mapping) for row in await connection.execute(query)]


def digest_of(code: str) -> str:
    """SHA-256 of the code as it was made: spaces, hyphens, case and the usual misreadings do not matter."""
    plain = "".join(letter for letter in code.upper() if letter.isalnum())
    if len(plain) > _GROUPS * _GROUP_LETTERS:
        plain = plain.removeprefix(PREFIX)
    return hashlib.sha256(plain.translate(_MISREAD).encode()).hexdigest()


def _new_code() -> str:
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LETTERS)) for _ in range(_GROUPS))
    return "-".join((PREFIX, *groups))


def _claim(digest: str, team_id: str, currency: str, at_us: int) -> Any:
    """The one statement that decides: it takes a code that is free, in this currency and in time."""
    codes, batches = redemption_codes, redemption_batches.c
    valid = select(batches.id).where(
        batches.currency == currency,
        batches.ended_at_us.is_(None),
        or_(batches.redeem_until_us.is_(None), batches.redeem_until_us > at_us),
    )
    return (
        update(codes)
        .where(codes.c.digest == digest, codes.c.team_id.is_(None), codes.c.batch_id.in_(valid))
        .values(team_id=team_id, redeemed_at_us=at_us)
        .returning(codes.c.batch_id)
    )


async def _refusal(connection: AsyncConnection, digest: str, currency: str, at_us: int) -> InvalidWallet | Conflict:
    codes, batches = redemption_codes.c, redemption_batches
    query = (
        select(codes.redeemed_at_us, batches)
        .select_from(redemption_codes.join(batches, batches.c.id == codes.batch_id))
        .where(codes.digest == digest)
    )
    row: Row[Any] | None = (await connection.execute(query)).one_or_none()
    if row is None:
        return InvalidWallet("code: there is no such code; check each letter", field="code")
    if row.redeemed_at_us is not None:
        return Conflict(f"code: was redeemed already, at {format_time(row.redeemed_at_us)}", field="code")
    if row.currency != currency:
        return InvalidWallet(f"code: is worth {row.currency}, and this wallet stands in {currency}", field="code")
    if row.ended_at_us is not None:
        return Conflict("code: its batch was ended", field="code")
    return Conflict(f"code: could be redeemed until {format_time(row.redeem_until_us)}", field="code")
