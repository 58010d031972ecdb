"""Wallets: what a team has paid in, less what it used. The balance is the plain sum of append-only entries.

Every team has one, in its settlement currency; usage debits it in the transaction that inserts the row, whoever pays when. A
prepaid team may spend its balance and its credit limit, and admission refuses what could go beyond; a postpaid team's balance
is what it owes. `post` is the one way in for everything but usage (`wallet_usage`): it moves the running balance and enters
the reason in one step, so that balance and sum of entries cannot part; `check_wallet` adds up again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, and_, case, false, func, insert, not_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.checks import parse_field
from billing.database import is_overflow
from billing.errors import AmountOverflow, InvalidWallet, NotFound
from billing.money import BEYOND, NANO
from billing.tables import rollup_traffic, teams
from billing.teams import TeamRow, get_team
from billing.times import now_us
from billing.wallet_tables import wallet_entries, wallet_events, wallets

LOW_BALANCE: Final = "low_balance"
RESTORED: Final = "restored"


@dataclass(frozen=True, slots=True)
class Wallet:
    """`credit_limit_nano` is how far below zero a prepaid balance may go; `low_balance_nano` (None: never) is the threshold of
    the low-balance event. All in `currency`, the team's settlement currency."""

    team_id: str
    currency: str
    billing: str
    credit_limit_nano: int
    balance_nano: int
    low_balance_nano: int | None
    is_low: bool

    @property
    def available_nano(self) -> int | None:
        """What may still be spent; None for a postpaid team: no wallet holds it back."""
        return self.balance_nano + self.credit_limit_nano if self.billing == "prepaid" else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One movement. `balance_nano` is the balance right after it; None for folded usage, which grows through its quarter-hour
    (`bucket_us`, with the number of its rows in `requests`)."""

    id: int
    team_id: str
    currency: str
    kind: str
    amount_nano: int
    balance_nano: int | None
    at_us: int
    bucket_us: int | None
    requests: int
    external_id: str | None
    method: str | None
    paid_currency: str | None
    paid_nano: int | None
    rate_pico: int | None
    reason: str | None
    actor: str | None
    expires_at_us: int | None
    reverses_id: int | None
    credit_id: int | None


@dataclass(frozen=True, slots=True)
class WalletEvent:
    """A balance fell below its threshold (`low_balance`) or is back above it (`restored`)."""

    id: int
    team_id: str
    currency: str
    kind: str
    balance_nano: int
    threshold_nano: int | None
    at_us: int


@dataclass(frozen=True, slots=True)
class WalletCheck:
    """The running balance, the sum of the entries, and usage as the entries and as the rollups have it: each pair is equal."""

    balance_nano: int
    entries_nano: int
    usage_entries_nano: int
    usage_rollup_nano: int

    @property
    def agrees(self) -> bool:
        return self.balance_nano == self.entries_nano and self.usage_entries_nano == -self.usage_rollup_nano


async def wallet_team(connection: AsyncConnection, team_id: str) -> TeamRow:
    """The team whose wallet this is. Raises `NotFound`."""
    team = await get_team(connection, team_id)
    if team is None:
        raise NotFound(f"no team {team_id!r}", field="id")
    return team


async def get_wallet(connection: AsyncConnection, team_id: str) -> Wallet:
    """Raises `NotFound` when there is no such team. A wallet without any entry holds nothing."""
    team = await wallet_team(connection, team_id)
    own = (wallets.c.team_id == team_id, wallets.c.currency == team.settlement_currency)
    row = (await connection.execute(select(wallets).where(*own))).one_or_none()
    return Wallet(
        team_id,
        team.settlement_currency,
        team.billing,
        team.credit_limit_nano or 0,
        0 if row is None else row.balance_nano,
        None if row is None else row.low_balance_nano,
        False if row is None else row.is_low,
    )


async def list_wallets(
    connection: AsyncConnection,
    *,
    billing: str | None = None,
    low: bool | None = None,
    after: str | None = None,
    limit: int,
) -> list[Wallet]:
    """Every team's wallet in its settlement currency, by the teams' ids from behind `after`; `low`: below their thresholds."""
    own = and_(wallets.c.team_id == teams.c.id, wallets.c.currency == teams.c.settlement_currency)
    columns = (wallets.c.balance_nano, wallets.c.low_balance_nano, wallets.c.is_low)
    query = select(teams.c.id, teams.c.settlement_currency, teams.c.billing, teams.c.credit_limit_nano, *columns)
    query = query.outerjoin(wallets, own).order_by(teams.c.id).limit(limit)
    if billing is not None:
        query = query.where(teams.c.billing == billing)
    if low is not None:
        is_low = func.coalesce(wallets.c.is_low, false())
        query = query.where(is_low if low else not_(is_low))
    if after is not None:
        query = query.where(teams.c.id > after)
    return [
        Wallet(
            row.id,
            row.settlement_currency,
            row.billing,
            row.credit_limit_nano or 0,
            row.balance_nano or 0,
            row.low_balance_nano,
            bool(row.is_low),
        )
        for row in await connection.execute(query)
    ]


async def balance_nano(connection: AsyncConnection, team_id: str, currency: str) -> int:
    """The running balance: what admission reads."""
    own = (wallets.c.team_id == team_id, wallets.c.currency == currency)
    return int(await connection.scalar(select(wallets.c.balance_nano).where(*own)) or 0)


async def list_entries(
    connection: AsyncConnection, team_id: str, *, kind: str | None = None, before: int | None = None, limit: int
) -> list[Entry]:
    """The team's entries, newest first, from before the entry `before`."""
    columns = wallet_entries.c
    query = select(wallet_entries).where(columns.team_id == team_id).order_by(columns.id.desc()).limit(limit)
    if kind is not None:
        query = query.where(columns.kind == kind)
    if before is not None:
        query = query.where(columns.id < before)
    return [entry_of(row) for row in await connection.execute(query)]


async def list_events(connection: AsyncConnection, team_id: str, *, after: int = 0, limit: int) -> list[WalletEvent]:
    """The team's low-balance events in the order they happened, from behind the event `after`."""
    columns = wallet_events.c
    query = (
        select(wallet_events).where(columns.team_id == team_id, columns.id > after).order_by(columns.id).limit(limit)
    )
    return [WalletEvent(**row._mapping) for row in await connection.execute(query)]


async def set_low_balance(connection: AsyncConnection, team_id: str, amount: str | None) -> Wallet:
    """Say below which balance an event is due (None: never). A balance that is there already makes one at once."""
    low_nano = None if amount is None else parse_field(amount, NANO, "low_balance")
    team = await wallet_team(connection, team_id)
    await lock_wallet(connection, team_id, team.settlement_currency)
    own = (wallets.c.team_id == team_id, wallets.c.currency == team.settlement_currency)
    await connection.execute(update(wallets).where(*own).values(low_balance_nano=low_nano))
    await note_levels(connection, [team_id])
    return await get_wallet(connection, team_id)


async def check_wallet(connection: AsyncConnection, team_id: str) -> WalletCheck:
    """Add everything up again, in one statement: all of it as of one moment. Raises `NotFound`."""
    team = await wallet_team(connection, team_id)
    currency, entries, traffic = team.settlement_currency, wallet_entries.c, rollup_traffic.c
    own = (entries.team_id == team_id, entries.currency == currency)
    running = select(wallets.c.balance_nano).where(wallets.c.team_id == team_id, wallets.c.currency == currency)
    total = select(func.sum(entries.amount_nano)).where(*own)
    used = select(func.sum(entries.amount_nano)).where(*own, entries.kind == "usage")
    rollup = select(func.sum(traffic.settled_nano)).where(
        traffic.team_id == team_id, traffic.settlement_currency == currency
    )
    sums = select(*(each.scalar_subquery() for each in (running, total, used, rollup)))
    return WalletCheck(*(int(nano or 0) for nano in (await connection.execute(sums)).one()))


async def lock_wallet(connection: AsyncConnection, team_id: str, currency: str, added_nano: int = 0) -> int:
    """Take the wallet's row, which makes its writers queue, and add to its running balance; the new balance."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    new = dialect.insert(wallets).values(team_id=team_id, currency=currency, balance_nano=added_nano, is_low=False)
    statement = new.on_conflict_do_update(
        index_elements=["team_id", "currency"],
        set_={"balance_nano": wallets.c.balance_nano + new.excluded.balance_nano},
    ).returning(wallets.c.balance_nano)
    try:
        return int((await connection.execute(statement)).scalar_one())
    except DBAPIError as error:
        if is_overflow(error):
            raise AmountOverflow(f"amount: the balance would be {BEYOND}", field="amount") from error
        raise


async def post(
    connection: AsyncConnection, *, team_id: str, currency: str, kind: str, amount_nano: int, **fields: Any
) -> Entry:
    """Enter one movement: the running balance, the entry, and a low-balance event where one is due."""
    if amount_nano == 0:
        raise InvalidWallet("amount: is zero in the wallet's currency", field="amount")
    balance = await lock_wallet(connection, team_id, currency, amount_nano)
    values = {
        "team_id": team_id,
        "currency": currency,
        "kind": kind,
        "amount_nano": amount_nano,
        "balance_nano": balance,
        "at_us": now_us(),
        "requests": 0,
        **fields,
    }
    row = (await connection.execute(insert(wallet_entries).values(values).returning(wallet_entries))).one()
    await note_levels(connection, [team_id])
    return entry_of(row)


async def note_levels(connection: AsyncConnection, team_ids: Collection[str]) -> tuple[WalletEvent, ...]:
    """Enter an event for each of these wallets that crossed its threshold since the last look. Their rows must be held."""
    columns = wallets.c
    low = case((columns.low_balance_nano.is_(None), False), else_=columns.balance_nano < columns.low_balance_nano)
    query = (
        select(columns.team_id, columns.currency, columns.balance_nano, columns.low_balance_nano, low.label("now_low"))
        .where(columns.team_id.in_(list(team_ids)), low != columns.is_low)
        .order_by(columns.team_id, columns.currency)
    )
    events = []
    for row in (await connection.execute(query)).all():
        own = (columns.team_id == row.team_id, columns.currency == row.currency)
        await connection.execute(update(wallets).where(*own).values(is_low=bool(row.now_low)))
        values = {
            "team_id": row.team_id,
            "currency": row.currency,
            "kind": LOW_BALANCE if row.now_low else RESTORED,
            "balance_nano": row.balance_nano,
            "threshold_nano": row.low_balance_nano,
            "at_us": now_us(),
        }
        entered = await connection.execute(insert(wallet_events).values(values).returning(wallet_events))
        events.append(WalletEvent(**entered.one()._mapping))
    return tuple(events)


def entry_of(row: Row[Any]) -> Entry:
    return Entry(**row._mapping)
