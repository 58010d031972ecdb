"""Tells of each threshold that a budget's period reaches, and of its first refusal, once: a metric, a log line and an event.

The figures are the database's sums, which the seeding forms once a second for every period in use: late by that much, never
too high. Periods that nobody draws on (a late row, a process that died) are looked at in turn. Whoever writes the event down
first logs and counts it; after a restart it is known to have been told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
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
from gateway.webhooks.outbox import Event, Value
from gateway.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from gateway.catalog import Catalog

logger = logging.getLogger(__name__)

THRESHOLD: Final = "budget.threshold"
REFUSED: Final = "budget.refused"
LOOK_S: Final = 10.0
LOOKED_AT: Final = 20
"""So many periods are looked at every `LOOK_S`, in the order of the budgets' ids."""
READ_TIMEOUT_S: Final = 10.0
KEPT_US: Final = 8 * DAY_US
"""How long after its end a period's events are known to have been told: rows can be late."""
MOST_REMEMBERED: Final = 50_000


class Thresholds:
    """A `BudgetListener`; `start` begins the looking at periods out of use. `percents` is what a budget's default is."""

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
        """An amount of 0 has no thresholds."""
        percents = self._percents if budget.thresholds is None else budget.thresholds
        reached = frozenset(each for each in percents if nano * 100 >= each * budget.amount_nano > 0)
        new = self._new(window, reached)
        for percent in sorted(new):
            data: dict[str, Value] = {"threshold_percent": percent, "spent": format_scaled(nano, NANO)}
            said = f"{Money(budget.currency, nano)} of {_amount(budget)} are spent, {percent} % or more"
            self._tell(budget, window, THRESHOLD, str(percent), data, said)

    def refused(self, budget: BudgetRow, window: BudgetWindow, left_nano: int, asked_nano: int) -> None:
        """A hard budget never gets to its last nano: this is how one hears that callers do without."""
        if self._new(window, frozenset((0,))):
            left = max(0, left_nano)
            data = {"left": format_scaled(left, NANO), "asked": format_scaled(asked_nano, NANO)}
            said = (
                f"a request that could cost {Money(budget.currency, asked_nano)} was refused, {Money(budget.currency, left)} "
                f"of {_amount(budget)} being left"
            )
            self._tell(budget, window, REFUSED, "refused", data, said)

    def _new(self, window: BudgetWindow, reached: frozenset[int]) -> frozenset[int]:
        """What of `reached` this process has not told before (0 stands for a refusal); it has from now on."""
        told = self._told.get(window, frozenset())
        if reached <= told:
            return frozenset()
        if len(self._told) >= MOST_REMEMBERED:
            self._told.clear()  # what is told again is known by its key
        self._told[window] = reached | told
        return reached - told

    def _tell(
        self, budget: BudgetRow, window: BudgetWindow, kind: str, what: str, data: Mapping[str, Value], said: str
    ) -> None:
        def first() -> None:
            self._metrics.budget_thresholds.labels(budget.scope, what).inc()
            whose = budget.scope if budget.scope_id is None else f"{budget.scope} {budget.scope_id}"
            logger.warning("budget %d (%s, %s): %s", budget.id, whose, budget.period, said)

        self._webhooks.tell(_event(budget, window, kind, what, data), first)

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


def _amount(budget: BudgetRow) -> Money:
    return Money(budget.currency, budget.amount_nano)


def _event(budget: BudgetRow, window: BudgetWindow, kind: str, what: str, data: Mapping[str, Value]) -> Event:
    start_us, end_us = window.bounds()
    return Event(
        key=f"budget/{budget.id}/{window.window}/{what}",
        kind=kind,
        data={
            "budget_id": budget.id,
            "scope": budget.scope,
            "scope_id": budget.scope_id,
            **data,
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
