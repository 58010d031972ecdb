"""Tells of each threshold that a budget's period reaches, once: a metric, a log line and an event (`gateway/webhooks`).

The figures are the database's sums, which the seeding forms once a second for every period in use: late by that much, never
too high. Periods that nobody draws on (a late row, a process that died) are looked at in turn. Whoever writes the event down
first logs and counts it; after a restart it is known to have been told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow
from billing.database import reading
from billing.errors import BillingError
from billing.money import NANO, Money, format_scaled
from billing.spending import spent
from billing.times import DAY_US, format_time, now_us
from gateway.admission.claims import BudgetWindow
from gateway.admission.periods import Periods
from gateway.metrics import Metrics
from gateway.webhooks.outbox import Event
from gateway.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from gateway.catalog import Catalog

logger = logging.getLogger(__name__)

KIND: Final = "budget.threshold"
LOOK_S: Final = 10.0
LOOKED_AT: Final = 20
"""So many periods are looked at every `LOOK_S`, in the order of the budgets' ids."""
READ_TIMEOUT_S: Final = 10.0
KEPT_US: Final = 8 * DAY_US
"""How long after its end a period's events are known to have been told: rows can be late."""
MOST_REMEMBERED: Final = 50_000


class Thresholds:
    """`spent` hears every sum; `start` begins the looking at periods out of use. `percents` is what a budget's default is."""

    def __init__(
        self, database: AsyncEngine, catalog: Catalog, webhooks: Webhooks, metrics: Metrics, percents: Sequence[int]
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._webhooks = webhooks
        self._metrics = metrics
        self._percents = tuple(percents)
        self._told: dict[BudgetWindow, frozenset[int]] = {}
        self._last_id = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._look_forever(), name="budget thresholds")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def spent(self, budget: BudgetRow, window: BudgetWindow, nano: int) -> None:
        """So much is spent of `budget` in the period `window`. An amount of 0 has no thresholds."""
        percents = self._percents if budget.thresholds is None else budget.thresholds
        reached = frozenset(each for each in percents if nano * 100 >= each * budget.amount_nano > 0)
        told = self._told.get(window, frozenset())
        if reached <= told:
            return
        if len(self._told) >= MOST_REMEMBERED:
            self._told.clear()  # what is told again is known by its key
        self._told[window] = reached | told
        for percent in sorted(reached - told):
            event = _event(budget, window, percent, nano)
            self._webhooks.tell(event, self._first(budget, percent, Money(budget.currency, nano)))

    def _first(self, budget: BudgetRow, percent: int, so_far: Money) -> Callable[[], None]:
        def first() -> None:
            self._metrics.budget_thresholds.labels(budget.scope, str(percent)).inc()
            whose = budget.scope if budget.scope_id is None else f"{budget.scope} {budget.scope_id}"
            amount = Money(budget.currency, budget.amount_nano)
            logger.warning(
                "budget %d (%s, %s): %s of %s are spent, %d %% or more",
                budget.id, whose, budget.period, so_far, amount, percent,
            )  # fmt: skip

        return first

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(now_us())
            except Exception as error:  # the database is away: a later look sees what this one could not
                logger.debug("budgets are not looked at: %s: %s", type(error).__name__, error)

    async def look(self, at_us: int) -> None:
        """The next `LOOKED_AT` budgets: what does the database say of their present periods?"""
        snapshot = self._catalog.snapshot
        ids = sorted(snapshot.budgets.by_id)
        due = list(islice((each for each in ids if each > self._last_id), LOOKED_AT))
        self._last_id = due[-1] if len(due) == LOOKED_AT else 0
        periods = Periods()
        async with asyncio.timeout(READ_TIMEOUT_S), reading(self._database) as connection:
            for budget in (snapshot.budgets.by_id[each] for each in due):
                period = periods.of(budget, at_us)
                try:
                    total = await spent(
                        connection, budget.scope, budget.scope_id, budget.currency, period.start_us, period.end_us,
                        snapshot.books.rates,
                    )  # fmt: skip
                except BillingError:  # it cannot be counted: whoever draws on it is told
                    continue
                self.spent(budget, period.window, total.nano)


def _event(budget: BudgetRow, window: BudgetWindow, percent: int, nano: int) -> Event:
    start_us, end_us = window.bounds()
    return Event(
        key=f"budget/{budget.id}/{window.window}/{percent}",
        kind=KIND,
        data={
            "budget_id": budget.id,
            "scope": budget.scope,
            "scope_id": budget.scope_id,
            "threshold_percent": percent,
            "spent": format_scaled(nano, NANO),
            "amount": format_scaled(budget.amount_nano, NANO),
            "currency": budget.currency,
            "hard": budget.hard,
            "period": budget.period,
            "timezone": budget.timezone,
            "period_start": format_time(start_us) if start_us else None,
            "resets_at": None if end_us is None else format_time(end_us),
        },
        keep_until_us=None if end_us is None else end_us + KEPT_US,
    )
