"""What wallets need of a running gateway: credit expires on time, and falls below a threshold are heard.

Every replica does the same rounds. An expiry is booked once whoever comes first (the wallet's row is taken, and what was booked
before is subtracted); events are read from the database, where each crossing stands once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import reading
from billing.money import Money
from billing.times import DAY_US, HOUR_US, format_time, now_us
from billing.wallet_expiry import LATE_US, expire_credits, expired_wallets
from billing.wallet_tables import wallet_events, wallets
from billing.wallets import LOW_BALANCE, WalletEvent
from gateway.metrics import Metrics
from gateway.webhooks.outbox import Event
from gateway.webhooks.webhooks import Webhooks

logger = logging.getLogger(__name__)

ROUND_S: Final = 5.0
ROUND_TIMEOUT_S: Final = 30.0
OVERLAP_US: Final = 60_000_000
"""Each round looks so far back before the last one: clocks of replicas and databases differ."""
TOLD_ANEW_US: Final = DAY_US
"""A process that starts tells what is no older than this."""
KEPT_US: Final = 8 * DAY_US
LOOK_BACK: Final = 1000
"""So many of the newest events are looked at: they may be committed in another order than that of their ids."""

Hearer = Callable[[WalletEvent], None]


class WalletKeeper:
    """Expires credits and hands low-balance events to whoever listens (`hear`; each process hears each event once)."""

    def __init__(self, database: AsyncEngine, metrics: Metrics, *hear: Hearer, round_s: float = ROUND_S) -> None:
        self._database = database
        self._metrics = metrics
        self._hear = hear or (log_event,)
        self._round_s = round_s
        self._swept_us = 0
        self._thorough_us = 0
        self._told: set[int] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._rounds(), name="wallet keeper")

    async def stop(self) -> None:
        """Let a round that is under way end."""
        if self._task is not None:
            self._stopping.set()
            await self._task
            self._task = None

    async def _rounds(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    await self.round(now_us())
            except Exception as error:  # the database is away: the next round does what this one could not
                logger.debug("wallets are not looked after: %s: %s", type(error).__name__, error)
            try:
                await asyncio.wait_for(self._stopping.wait(), self._round_s)
            except TimeoutError:
                continue

    async def round(self, at_us: int) -> None:
        """Book off what has expired since the last round (once an hour: in the last week, for late usage); tell of events."""
        thorough = at_us - self._thorough_us >= HOUR_US
        since_us = at_us - LATE_US if thorough else self._swept_us - OVERLAP_US
        async with reading(self._database) as connection:
            due = await expired_wallets(connection, since_us, at_us)
        for team_id, currency in due:
            async with self._database.begin() as connection:
                for entry in await expire_credits(connection, team_id, currency, at_us):
                    amount = Money(currency, entry.amount_nano)
                    logger.info("team %s: credit %s expired, %s booked", team_id, entry.credit_id, amount)
        self._swept_us = at_us
        if thorough:
            self._thorough_us = at_us
        await self._tell()

    async def _tell(self) -> None:
        columns, below = wallet_events.c, wallets.c.balance_nano < wallets.c.low_balance_nano
        query = select(wallet_events).order_by(columns.id.desc()).limit(LOOK_BACK)
        async with reading(self._database) as connection:
            low = await connection.scalar(select(func.count()).select_from(wallets).where(below))
            events = [WalletEvent(**row._mapping) for row in await connection.execute(query)]
        self._metrics.wallets_low.set(low or 0)
        told, self._told = self._told, {event.id for event in events}
        if told is None:  # others may have been down when it happened; who hears it knows what was told
            told = {event.id for event in events if event.at_us < now_us() - TOLD_ANEW_US}
        for event in reversed(events):
            if event.id not in told:
                for hear in self._hear:
                    hear(event)


def through(webhooks: Webhooks) -> Hearer:
    """Has each event sent to the configured receiver, and logged by the one process of all that wrote it down first."""

    def hear(event: WalletEvent) -> None:
        webhooks.tell(_told_of(event), lambda: log_event(event))

    return hear


def _told_of(event: WalletEvent) -> Event:
    return Event(
        key=f"wallet/{event.id}",
        kind=f"wallet.{event.kind}",
        data={
            "team_id": event.team_id,
            "balance": Money(event.currency, event.balance_nano).amount,
            "threshold": None if event.threshold_nano is None else Money(event.currency, event.threshold_nano).amount,
            "currency": event.currency,
            "at": format_time(event.at_us),
        },
        keep_until_us=event.at_us + KEPT_US,
    )


def log_event(event: WalletEvent) -> None:
    """The listener that is always there."""
    balance = Money(event.currency, event.balance_nano)
    if event.kind == LOW_BALANCE:
        assert event.threshold_nano is not None
        threshold = Money(event.currency, event.threshold_nano)
        logger.warning("team %s: the balance is %s, below %s", event.team_id, balance, threshold)
    else:
        logger.info("team %s: the balance is %s, no longer low", event.team_id, balance)
