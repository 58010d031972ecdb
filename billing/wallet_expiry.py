"""Credit that expires: what is left of it at that moment leaves the wallet.

Which credit was used is not written down, it follows from the entries: usage and debits take the credit that expires first,
what exceeds all credit is owed, and the next credit pays that first. `unspent` computes it from the whole history, usage by its
quarter-hour, so that rows which are recorded late are counted where they belong; whatever has been booked otherwise before is
put right by another entry. A credit can pay for the whole quarter-hour in which it came, and for that in which it expires.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.times import DAY_US, LATEST_US, quarter_of
from billing.wallet_tables import wallet_entries
from billing.wallets import Entry, entry_of, lock_wallet, post

LATE_US: Final = 7 * DAY_US
"""How long after an expiry late usage is still counted against it; well beyond what a journal is kept."""


class _Lot:
    """What is left of one credit; `expires_us` is far away for one that never does."""

    __slots__ = ("credit_id", "expires_us", "left_nano")

    def __init__(self, credit_id: int, expires_us: int, left_nano: int) -> None:
        self.credit_id = credit_id
        self.expires_us = expires_us
        self.left_nano = left_nano


def _first_to_expire(lot: _Lot) -> tuple[int, int]:
    return (lot.expires_us, lot.credit_id)


class _Lots:
    """All credits of a wallet as time goes by, and what it owes where there was none."""

    def __init__(self) -> None:
        self.open: list[_Lot] = []
        self.ended: list[_Lot] = []
        self.owed_nano = 0

    def end_until(self, quarter_us: int) -> None:
        while self.open and self.open[0].expires_us <= quarter_us:
            self.ended.append(self.open.pop(0))

    def credit(self, lot: _Lot) -> None:
        paid = min(self.owed_nano, lot.left_nano)
        self.owed_nano -= paid
        lot.left_nano -= paid
        insort(self.open, lot, key=_first_to_expire)

    def use(self, nano: int) -> None:
        for lot in self.open:
            taken = min(nano, lot.left_nano)
            lot.left_nano -= taken
            nano -= taken
            if not nano:
                return
        self.owed_nano += nano


def unspent(entries: Iterable[Entry], at_us: int) -> dict[int, int]:
    """How much of each credit that has expired by `at_us` was never used, by its id. Reversed entries count as never made."""
    entries = list(entries)
    undone = {entry.reverses_id for entry in entries if entry.reverses_id is not None}
    moves = [
        (quarter_of(entry.at_us), entry.amount_nano < 0, entry.id, entry)
        for entry in entries
        if entry.kind in ("usage", "top_up", "code", "adjustment") and entry.id not in undone
    ]
    lots = _Lots()
    for quarter_us, is_debit, _, entry in sorted(moves, key=lambda move: move[:3]):
        lots.end_until(quarter_us)
        if is_debit:
            lots.use(-entry.amount_nano)
        else:
            lots.credit(_Lot(entry.id, entry.expires_at_us or LATEST_US, entry.amount_nano))
    lots.end_until(at_us)
    return {lot.credit_id: lot.left_nano for lot in lots.ended if lot.expires_us <= at_us}


async def expire_credits(connection: AsyncConnection, team_id: str, currency: str, at_us: int) -> list[Entry]:
    """Book off what is unspent of the credits that have expired, and put right what late usage or a reversal changed."""
    await lock_wallet(connection, team_id, currency)
    columns = wallet_entries.c
    own = (columns.team_id == team_id, columns.currency == currency)
    if await connection.scalar(select(columns.id).where(*own, columns.expires_at_us <= at_us).limit(1)) is None:
        return []
    query = select(wallet_entries).where(*own)
    entries = [entry_of(row) for row in await connection.execute(query)]
    booked = _booked(entries)
    due = unspent(entries, at_us)
    made = []
    for credit_id in sorted(due.keys() | booked.keys()):
        missing = due.get(credit_id, 0) - booked.get(credit_id, 0)
        if missing:
            made.append(
                await post(
                    connection,
                    team_id=team_id,
                    currency=currency,
                    kind="expiry",
                    amount_nano=-missing,
                    credit_id=credit_id,
                    reason="credit expired" if missing > 0 else "used before it expired, or reversed",
                )
            )
    return made


async def expired_wallets(connection: AsyncConnection, since_us: int, until_us: int) -> list[tuple[str, str]]:
    """Team and currency of the wallets of which a credit expired after `since_us`, up to `until_us`."""
    columns = wallet_entries.c
    query = (
        select(columns.team_id, columns.currency)
        .where(columns.expires_at_us > since_us, columns.expires_at_us <= until_us)
        .distinct()
        .order_by(columns.team_id, columns.currency)
    )
    return [(row.team_id, row.currency) for row in await connection.execute(query)]


def _booked(entries: Iterable[Entry]) -> Mapping[int, int]:
    booked: dict[int, int] = {}
    for entry in entries:
        if entry.credit_id is not None:
            booked[entry.credit_id] = booked.get(entry.credit_id, 0) - entry.amount_nano
    return booked
