"""Wallets: balances, entries, top-ups, redemptions, adjustments, reversals, low-balance events, and their check."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Controller, get, patch, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct

from billing.money import INT64_MAX, NANO, PICO, format_scaled
from billing.records import MoneyView
from billing.redemption import redeem
from billing.wallet_credits import adjust, reverse_entry, top_up
from billing.wallet_tables import ENTRY_KINDS
from billing.wallets import (
    Entry,
    Wallet,
    WalletEvent,
    check_wallet,
    get_wallet,
    list_entries,
    list_events,
    list_wallets,
    set_low_balance,
)
from gateway.admin.failures import missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, IdText, Limit, RowId, after_id, cut, decode_cursor
from gateway.admin.services import Editable, Injected
from gateway.admin.texts import Currency, Decimal, Moment, Text, moment, moment_us

ADMIN = "admin"
"""Who acted, where the body does not say."""
Reason = Annotated[str, Meta(min_length=1, max_length=300, description="Why: it stands in the books for ever.")]
Actor = Annotated[str, Meta(min_length=1, max_length=200, description="Who did it.")]
ExternalId = Annotated[str, Meta(min_length=1, max_length=200, description="The payment's own id: it is entered once.")]
Kind = Annotated[
    Literal["top_up", "code", "adjustment", "usage", "reversal", "expiry"] | None,
    QueryParameter(description=f"One of {', '.join(ENTRY_KINDS)}."),
]


class PostTopUp(Struct, frozen=True, forbid_unknown_fields=True):
    """What was paid, and how. Said again under the same `external_id` it changes nothing; with another body it is a conflict.

    A payment in another currency than the wallet's needs the `rate` it came in at: wallet units for one unit paid.
    """

    external_id: ExternalId
    amount: Decimal
    currency: Currency
    method: Text
    rate: Decimal | None = None
    reason: Reason | None = None
    actor: Actor = ADMIN
    expires_at: Moment | None = None


class PostRedemption(Struct, frozen=True, forbid_unknown_fields=True):
    code: Annotated[str, Meta(min_length=1, max_length=100)]
    actor: Actor = ADMIN


class PostAdjustment(Struct, frozen=True, forbid_unknown_fields=True):
    """A negative amount takes money out. The currency, where it is given, must be the wallet's."""

    amount: Decimal
    reason: Reason
    actor: Actor = ADMIN
    currency: Currency | None = None
    external_id: ExternalId | None = None
    expires_at: Moment | None = None


class PostReversal(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason
    actor: Actor = ADMIN


class ChangeWallet(Struct, frozen=True, forbid_unknown_fields=True):
    """Below which balance an event is due; null: never."""

    low_balance: Decimal | None


class WalletView(Editable, frozen=True):
    """Amounts are decimal strings in `currency`. `available` is what a prepaid team may still spend; null: nothing holds it."""

    team_id: str
    currency: str
    billing: str
    balance: str
    credit_limit: str
    available: str | None
    low_balance: str | None
    is_low: bool


class EntryView(Struct, frozen=True):
    """`amount` and `balance` (right after it) are in `currency`; `paid` is what came in where that was another one, at `rate`."""

    id: int
    team_id: str
    kind: str
    amount: str
    currency: str
    balance: str | None
    at: str | None
    requests: int
    external_id: str | None
    method: str | None
    paid: MoneyView | None
    rate: str | None
    reason: str | None
    actor: str | None
    expires_at: str | None
    reverses: int | None
    credit: int | None


class EntryPage(Struct, frozen=True):
    data: list[EntryView]
    next_cursor: str | None


class EventView(Struct, frozen=True):
    id: int
    team_id: str
    kind: str
    balance: str
    threshold: str | None
    currency: str
    at: str | None


class EventPage(Struct, frozen=True):
    data: list[EventView]
    next_cursor: str | None


class CheckView(Struct, frozen=True):
    """Running balance = sum of the entries, and usage in the entries = usage in the rollups: `agrees` when both hold."""

    team_id: str
    currency: str
    agrees: bool
    balance: str
    entries: str
    usage_entries: str
    usage_settled: str


class WalletPage(Struct, frozen=True):
    data: list[WalletView]
    next_cursor: str | None


class AllWalletsController(Controller):
    path = "/wallets"
    tags = ("wallets",)

    @get(summary="Every team's balance")
    async def index(
        self,
        rooms: Injected,
        billing: Annotated[Literal["postpaid", "prepaid"] | None, QueryParameter()] = None,
        low: FromQuery[bool | None] = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> WalletPage:
        after = decode_cursor(cursor, IdText)
        async with rooms.read() as connection:
            rows = await list_wallets(connection, billing=billing, low=low, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.team_id)
        return WalletPage([_wallet(row) for row in page], next_cursor)


class WalletsController(Controller):
    path = "/wallets/{team_id:str}"
    tags = ("wallets",)

    @get(summary="A team's balance")
    async def one(self, team_id: FromPath[str], rooms: Injected) -> WalletView:
        async with rooms.read() as connection:
            return _wallet(await get_wallet(connection, team_id))

    @patch(summary="Set the threshold of the low-balance event")
    async def change(self, team_id: FromPath[str], data: JSONBody[ChangeWallet], rooms: Injected) -> WalletView:
        async with rooms.book() as connection:
            rooms.editing(_wallet(await get_wallet(connection, team_id)))
            return rooms.done(_wallet(await set_low_balance(connection, team_id, data.low_balance)))

    @get("/entries", summary="What moved the balance, newest first")
    async def entries(
        self,
        team_id: FromPath[str],
        rooms: Injected,
        kind: Kind = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> EntryPage:
        before = decode_cursor(cursor, RowId)
        async with rooms.read() as connection:
            await get_wallet(connection, team_id)
            rows = await list_entries(connection, team_id, kind=kind, before=before, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return EntryPage([entry_view(row) for row in page], next_cursor)

    @get("/events", summary="Falls below the threshold and returns above it, in their order")
    async def events(
        self, team_id: FromPath[str], rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT
    ) -> EventPage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            await get_wallet(connection, team_id)
            rows = await list_events(connection, team_id, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return EventPage([_event(row) for row in page], next_cursor)

    @get("/check", summary="Add the wallet up again")
    async def check(self, team_id: FromPath[str], rooms: Injected) -> CheckView:
        async with rooms.read() as connection:
            wallet = await get_wallet(connection, team_id)
            found = await check_wallet(connection, team_id)
        sums = (found.balance_nano, found.entries_nano, found.usage_entries_nano, found.usage_rollup_nano)
        return CheckView(team_id, wallet.currency, found.agrees, *(format_scaled(nano, NANO) for nano in sums))

    @post("/top-ups", summary="Credit a payment, once by its external id")
    async def credit(self, team_id: FromPath[str], data: JSONBody[PostTopUp], rooms: Injected) -> EntryView:
        expires_at_us = moment_us(data.expires_at, "expires_at")
        async with rooms.book() as connection:
            entry = await top_up(
                connection,
                team_id=team_id,
                external_id=data.external_id,
                amount=data.amount,
                currency=data.currency,
                method=data.method,
                rate=data.rate,
                reason=data.reason,
                actor=rooms.actor(data.actor),
                expires_at_us=expires_at_us,
            )
            return rooms.done(entry_view(entry))

    @post("/redemptions", summary="Redeem a code, which can be done once")
    async def redeem(self, team_id: FromPath[str], data: JSONBody[PostRedemption], rooms: Injected) -> EntryView:
        async with rooms.book() as connection:
            entry = await redeem(connection, team_id=team_id, code=data.code, actor=rooms.actor(data.actor))
            return rooms.done(entry_view(entry))

    @post("/adjustments", summary="Credit or debit a wallet for a stated reason")
    async def adjust(self, team_id: FromPath[str], data: JSONBody[PostAdjustment], rooms: Injected) -> EntryView:
        expires_at_us = moment_us(data.expires_at, "expires_at")
        async with rooms.book() as connection:
            entry = await adjust(
                connection,
                team_id=team_id,
                amount=data.amount,
                reason=data.reason,
                actor=rooms.actor(data.actor),
                currency=data.currency,
                external_id=data.external_id,
                expires_at_us=expires_at_us,
            )
            return rooms.done(entry_view(entry))

    @post("/entries/{entry_id:int}/reverse", summary="Take an entry back by a linked one, at the rate it came in at")
    async def reverse(
        self, team_id: FromPath[str], entry_id: FromPath[int], data: JSONBody[PostReversal], rooms: Injected
    ) -> EntryView:
        if entry_id > INT64_MAX:
            raise missing("entry", entry_id)
        async with rooms.book() as connection:
            entry = await reverse_entry(
                connection, team_id=team_id, entry_id=entry_id, reason=data.reason, actor=rooms.actor(data.actor)
            )
            return rooms.done(entry_view(entry))


def _amount(nano: int | None) -> str | None:
    return None if nano is None else format_scaled(nano, NANO)


def _wallet(wallet: Wallet) -> WalletView:
    return WalletView(
        wallet.team_id,
        wallet.currency,
        wallet.billing,
        format_scaled(wallet.balance_nano, NANO),
        format_scaled(wallet.credit_limit_nano, NANO),
        _amount(wallet.available_nano),
        _amount(wallet.low_balance_nano),
        wallet.is_low,
    )


def entry_view(entry: Entry) -> EntryView:
    fields: dict[str, Any] = {
        name: getattr(entry, name)
        for name in ("id", "team_id", "kind", "currency", "requests", "external_id", "method", "reason", "actor")
    }
    return EntryView(
        **fields,
        amount=format_scaled(entry.amount_nano, NANO),
        balance=_amount(entry.balance_nano),
        at=moment(entry.at_us),
        paid=MoneyView.of_nano(entry.paid_nano, entry.paid_currency),
        rate=None if entry.rate_pico is None else format_scaled(entry.rate_pico, PICO),
        expires_at=moment(entry.expires_at_us),
        reverses=entry.reverses_id,
        credit=entry.credit_id,
    )


def _event(event: WalletEvent) -> EventView:
    return EventView(
        event.id,
        event.team_id,
        event.kind,
        format_scaled(event.balance_nano, NANO),
        _amount(event.threshold_nano),
        event.currency,
        moment(event.at_us),
    )
