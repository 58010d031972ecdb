"""Bringing the store's budgets in line with the database: at first use, after a wipe, and once a second (or sooner) for ever.

A budget period's spending is base + unshipped: the sum that the database had, and what settled since and was not seen there.
One reconciliation opens a snapshot of the database, then lists the unshipped settlements, and asks that snapshot both for the
sums and for which of those requests it has rows. Setting the new bases and ending the counting of what has a row is one step
of the store. So nothing is missed and nothing counted twice, except a request whose row overtook its own settlement: that
one counts twice until the next round, on the safe side. Corrections, lost requests that the recorder found, an old copy of
the store or of the database: a round later the figures are the database's again.

What a process that died had settled and not yet shipped stands in its journal alone. So hard budgets and wallets wait until the
recorder has shipped the journals of the dead (`current`); periods that got a base before that are counted anew first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.budgets import BudgetRow
from billing.database import catalog_version, reading
from billing.errors import BillingError
from billing.exchange import RateBook
from billing.spending import MOST, overflowed, spent
from billing.wallets import balance_nano
from gateway.admission.claims import Base, BudgetWindow
from gateway.admission.counted import counted_among
from gateway.admission.listener import BudgetListener, Unheard
from gateway.admission.memory import MemoryStore
from gateway.admission.store import LimitStore, StoreUnavailable
from gateway.admission.wallet import wallet_of

logger = logging.getLogger(__name__)

ROUND_S: Final = 1.0
BACKLOG_S: Final = 0.25
"""The next round comes this soon where one could not look at all that is unshipped: 8,000 requests a second are kept up with."""
READ_TIMEOUT_S: Final = 2.0
PATIENCE_S: Final = 1.0
INHERIT_S: Final = 0.01
"""How often it is asked whether the journals of the dead are in the database."""
ACTIVE_S: Final = 120.0
"""A budget period is kept in line by a process for so long after its last request there."""
WINDOWS_PER_ROUND: Final = 200
SETTLEMENTS_PER_ROUND: Final = 2000
"""Twice as many where they lie in this process's own memory: a shared store serves nobody meanwhile."""
TRIES: Final = 5
UNHEARD: Final = Unheard()


class BudgetCatalog:
    """What seeding needs to know of the catalog: the budgets by id, and the rates that count the budgets over everything."""

    def __init__(
        self,
        budgets: Callable[[int], BudgetRow | None],
        rates: Callable[[], RateBook],
        listener: BudgetListener = UNHEARD,
    ) -> None:
        self.budget = budgets
        self.rates = rates
        self.listener = listener


class Seeding:
    """Keeps a store's budget periods equal to the database's sums plus what the database does not have yet."""

    def __init__(
        self,
        database: AsyncEngine,
        store: LimitStore,
        catalog: BudgetCatalog,
        inheriting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`inheriting`: whether journals of dead processes are still on their way into the database."""
        self._database = database
        self._inheriting = inheriting
        self._inherited = False
        self._inheritance = asyncio.Lock()
        self._early: set[BudgetWindow] = set()
        """Periods whose base was read while the journals of the dead were on their way."""
        self._store = store
        self._catalog = catalog
        self._active: OrderedDict[BudgetWindow, float] = OrderedDict()
        self._versions: dict[BudgetWindow, int] = {}
        self._pending: dict[BudgetWindow, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._heir: asyncio.Task[None] | None = None
        self._patient_until_s = 0.0
        self._backlog = False
        self.waking: set[BudgetWindow] = set()
        self.uncountable: dict[BudgetWindow, str] = {}
        """Periods whose sum cannot be formed (a rate is missing), and why."""
        self._began_us = time.time_ns() // 1000
        self._alone = isinstance(store, MemoryStore)

    def start(self) -> None:
        self._task = asyncio.create_task(self._round_forever(), name="budget seeding")
        self._patient_until_s = time.monotonic() + PATIENCE_S
        self._heir = asyncio.create_task(self._inherit_soon(), name="budget inheritance")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._heir, *self._pending.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = self._heir = None

    @property
    def current(self) -> bool:
        """Whether bases hold what dead processes settled. A shared store, once they have, holds what dies later by itself."""
        if self._inherited and self._behind():
            self._inherited = False
            self._early.update(self._versions)
        return self._inherited

    async def inherit(self) -> None:
        """Returns when bases hold what dead processes settled. Raises `StoreUnavailable` while that cannot be known.

        Right after the start it waits a moment: then it takes only so long to see that nobody died.
        """
        while self._inheriting() and time.monotonic() < self._patient_until_s:
            await asyncio.sleep(INHERIT_S)
        async with self._inheritance:
            if self.current:
                return
            if self._inheriting():
                raise StoreUnavailable("what a process that died had settled is not in the database yet")
            for _ in range(TRIES * (1 + len(self._early) // WINDOWS_PER_ROUND)):
                self._early.difference_update(self.uncountable)
                if not self._early:
                    break
                await self.reconcile(list(islice(self._early, WINDOWS_PER_ROUND)))
            else:
                raise StoreUnavailable("the budgets are being counted anew; try again")
            self._inherited = True

    def _behind(self) -> bool:
        """Whether the database may lack settlements that this process's store does not know of."""
        return self._inheriting() and (self._alone or not self._inherited)

    async def _inherit_soon(self) -> None:
        while not self._inherited:
            try:
                await self.inherit()
            except StoreUnavailable as error:
                logger.debug("hard budgets wait: %s", error)
                await asyncio.sleep(INHERIT_S)

    def used(self, window: BudgetWindow) -> None:
        """A request draws on this period: keep it in line."""
        self._active[window] = time.monotonic()

    def follows(self, window: BudgetWindow) -> bool:
        """Whether this period was in use lately, so that it is brought in line every second."""
        return window in self._active

    async def wake(self, windows: Collection[BudgetWindow]) -> None:
        """`seed`, for which every request that draws on these periods meanwhile waits as well (`waking`)."""
        self.waking.update(windows)
        try:
            await self.seed(windows)
        finally:
            self.waking.difference_update(windows)

    async def seed(self, windows: Iterable[BudgetWindow]) -> None:
        """Give these periods a base. Many requests that find them unseeded at once share one read.

        Raises `StoreUnavailable` when the store or the database does not answer.
        """
        windows = list(windows)
        missing = [window for window in windows if window not in self._pending]
        if missing:
            task = asyncio.create_task(self._seed(missing), name="budget seed")
            for window in missing:
                self._pending[window] = task
            task.add_done_callback(lambda _: [self._pending.pop(window, None) for window in missing])
        for seeding in {id(each): each for window in windows if (each := self._pending.get(window))}.values():
            await asyncio.shield(seeding)

    async def _seed(self, windows: list[BudgetWindow]) -> None:
        for _ in range(TRIES):
            if await self.reconcile(windows):
                return
        raise StoreUnavailable("the budgets of this request are being counted; try again")

    async def reconcile(self, windows: Collection[BudgetWindow]) -> bool:
        """Give `windows` new bases, and move what is shipped of all others; False when another reconciliation came between.

        Where more is unshipped than one round can look at, only periods without a base get one (what they count twice, later
        rounds mend), and the backlog shrinks.
        """
        behind = self._behind()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._snapshot() as connection:
                listed = await self._store.unshipped(windows, SETTLEMENTS_PER_ROUND * (1 + self._alone))
                shipped = await counted_among(connection, listed.settled)
                sums = {}
                for window in windows:
                    if listed.complete or not listed.versions.get(window, 0):
                        nano = await self._sum(connection, window)
                        if nano is not None:
                            sums[window] = nano
            self._backlog = not listed.complete
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            if not self._alone or any(window.bounds()[0] < self._began_us for window in windows):
                raise StoreUnavailable(f"the budgets cannot be read: {type(error).__name__}") from error
            # All that was ever spent in periods this young went through this process's own memory.
            listed = await self._store.unshipped(windows, 0)
            sums, shipped = {window: 0 for window in windows if not listed.versions.get(window, 0)}, set()
        bases = {window: Base(nano, listed.versions.get(window, 0)) for window, nano in sums.items()}
        if not bases and not shipped:
            return True
        done = await self._store.reconcile(bases, shipped)
        if done:
            for window, base in bases.items():
                self._versions[window] = base.version + 1
            if behind:
                self._inherited = False
                self._early.update(bases)
            else:
                self._early.difference_update(bases)
        return done

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[AsyncConnection]:
        """One moment of the database, fixed when this returns."""
        async with reading(self._database) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            await catalog_version(connection)
            yield connection

    async def _sum(self, connection: AsyncConnection, window: BudgetWindow) -> int | None:
        wallet = wallet_of(window)
        if wallet is not None:
            if await overflowed(connection, "team", wallet[0], 0):
                return MOST
            return -await balance_nano(connection, *wallet)
        budget = self._catalog.budget(window.budget_id)
        if budget is None:  # ended: nothing draws on it any more
            return 0
        start_us, end_us = window.bounds()
        try:
            total = await spent(
                connection, budget.scope, budget.scope_id, budget.currency, start_us, end_us, self._catalog.rates()
            )
        except BillingError as error:
            if window not in self.uncountable:
                logger.warning("budget %d cannot be counted: %s", budget.id, error)
            self.uncountable[window] = str(error)
            return None
        self.uncountable.pop(window, None)
        self._catalog.listener.spent(budget, window, total.nano)
        return total.nano

    async def _round_forever(self) -> None:
        while True:
            await asyncio.sleep(BACKLOG_S if self._backlog else ROUND_S)
            self._backlog = False
            try:
                await self._round()
            except StoreUnavailable as error:
                logger.debug("budgets are not reconciled: %s", error)
            except Exception:
                logger.exception("a reconciliation of the budgets failed")

    async def _round(self) -> None:
        """Reconcile the periods in use, the longest-waiting first; leave out what another process did since the last look."""
        now_s = time.monotonic()
        due: list[BudgetWindow] = []
        for window, used_s in list(self._active.items()):
            if now_s - used_s > ACTIVE_S:
                del self._active[window]
                self._versions.pop(window, None)
            elif len(due) < WINDOWS_PER_ROUND:
                due.append(window)
        if not due:
            return
        for window in due:
            self._active.move_to_end(window)
        listed = await self._store.unshipped(due, 0)
        mine = []
        for window in due:
            version = listed.versions.get(window, 0)
            if self._versions.get(window, version) == version:
                mine.append(window)
            self._versions[window] = version
        if mine:
            await self.reconcile(mine)
