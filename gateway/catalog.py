"""What the database says, held in memory: keys, teams, prices, rates, terms and budgets, as one immutable snapshot.

Readers take `catalog.snapshot` once per request and never wait. A poll of one number, the catalog version, every 500 ms
notices what any process wrote; the new snapshot is built aside and swapped in whole. While the database is away the last
snapshot stays, and `age_s` says how old its knowledge is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.books import Books, Pins, load_books
from billing.budgets import BudgetRow, list_budgets
from billing.database import catalog_version, reading
from billing.teams import TeamRow, list_teams
from billing.times import now_us
from gateway.access import repository
from gateway.access.identity import Identity
from gateway.access.pepper import Pepper, PepperError

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
READ_TIMEOUT_S: Final = 10.0
"""A read that takes longer counts as an outage; a frozen database must not freeze the poll."""


@dataclass(frozen=True, slots=True)
class BudgetIndex:
    """The budgets by what they bound."""

    by_team: Mapping[str, tuple[BudgetRow, ...]]
    by_key: Mapping[str, tuple[BudgetRow, ...]]
    all: tuple[BudgetRow, ...]
    by_id: Mapping[int, BudgetRow]

    @classmethod
    def of(cls, budgets: list[BudgetRow]) -> BudgetIndex:
        by_team: dict[str, tuple[BudgetRow, ...]] = {}
        by_key: dict[str, tuple[BudgetRow, ...]] = {}
        for budget in budgets:
            if budget.scope != "all":
                assert budget.scope_id is not None
                index = by_team if budget.scope == "team" else by_key
                index[budget.scope_id] = (*index.get(budget.scope_id, ()), budget)
        everybody = tuple(budget for budget in budgets if budget.scope == "all")
        return cls(by_team, by_key, everybody, {budget.id: budget for budget in budgets})

    def over(self, identity: Identity) -> tuple[BudgetRow, ...]:
        """Every budget that a request of this key draws on."""
        return (*self.by_key.get(identity.key_id, ()), *self.by_team.get(identity.team_id, ()), *self.all)


@dataclass(frozen=True, slots=True)
class Snapshot:
    version: int
    loaded_at_us: int
    keys: Mapping[bytes, Identity]
    """By the 32-byte digest of the whole key."""
    teams: Mapping[str, TeamRow]
    books: Books
    pins: Pins
    budgets: BudgetIndex


class NotLoaded(Exception):
    """The catalog has never been read: nothing is known about any key."""


class Catalog:
    """Holds the newest `Snapshot` and keeps it new."""

    def __init__(self, database: AsyncEngine, pepper: Pepper, *, poll_s: float = POLL_S) -> None:
        self._database = database
        self._pepper = pepper
        self._poll_s = poll_s
        self._snapshot: Snapshot | None = None
        self._checked_at_s = -1.0
        self._pepper_checked = False
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.stale_since_us: int | None = None
        """When the database was last read, once a read has failed; None while all is well."""
        self.refused: str | None = None
        """Why this process must not serve although the database answers: another pepper than its keys'."""

    @property
    def snapshot(self) -> Snapshot:
        """Raises `NotLoaded` until the database could be read once."""
        if self._snapshot is None:
            raise NotLoaded
        return self._snapshot

    @property
    def ready(self) -> bool:
        """Loaded at least once. A later outage does not take it back."""
        return self._snapshot is not None

    def age_s(self) -> float:
        """Seconds since the database last confirmed what the snapshot says."""
        return time.monotonic() - self._checked_at_s

    async def start(self) -> None:
        """Load, and keep polling. A database that is away only leaves `ready` False; raises `PepperError` on a mismatch."""
        assert self._task is None, "the catalog is started once"
        try:
            await self.refresh()
        except PepperError:
            raise
        except Exception as error:
            self._failed(error)
        self._task = asyncio.create_task(self._poll(), name="catalog poll")

    async def stop(self) -> None:
        """Let a read that is under way end: one that is torn off in the middle of connecting leaks its connection."""
        if self._task is not None:
            self._stopping.set()
            await self._task
            self._task = None

    async def refresh(self) -> None:
        """Read what changed, now. Admin writes call it so that this process sees its own write at once.

        Raises what the database raises; `PepperError` when the keys there were hashed with another pepper.
        """
        async with self._lock:
            began_s = time.monotonic()
            async with asyncio.timeout(READ_TIMEOUT_S):
                snapshot = await self._read()
            self._snapshot = snapshot
            self._checked_at_s = began_s
        if self.stale_since_us is not None:
            logger.info("the catalog is current again at version %d", snapshot.version)
        self.stale_since_us = self.refused = None

    async def _poll(self) -> None:
        while not await self._stops_within(self._poll_s):
            try:
                await self.refresh()
            except Exception as error:
                self._failed(error)

    async def _stops_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    def _failed(self, error: Exception) -> None:
        if isinstance(error, PepperError):
            self.refused = str(error)
        if self.stale_since_us is None:
            self.stale_since_us = self._snapshot_confirmed_at_us()
            logger.warning("the catalog cannot be read (%s: %s); the last one stays", type(error).__name__, error)

    def _snapshot_confirmed_at_us(self) -> int:
        age_us = int(self.age_s() * 1_000_000) if self._snapshot is not None else 0
        return now_us() - age_us

    async def _read(self) -> Snapshot:
        """The snapshot of the database's present version; the old one when nothing changed."""
        if not self._pepper_checked:
            await self._check_pepper()
        async with reading(self._database) as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            version = await catalog_version(connection)
            old = self._snapshot
            if old is not None and old.version == version:
                return old
            return await _load(connection, version, old)

    async def _check_pepper(self) -> None:
        """Compare with the fingerprint in the database, which the first process ever to start here writes."""
        async with reading(self._database) as connection:
            recorded = await repository.pepper_fingerprint(connection)
        if recorded is None:
            async with self._database.begin() as connection:
                await repository.record_pepper_fingerprint(connection, self._pepper.fingerprint)
                recorded = await repository.pepper_fingerprint(connection)
        assert recorded is not None
        self._pepper.check(recorded)
        self._pepper_checked = True


async def _load(connection: AsyncConnection, version: int, old: Snapshot | None) -> Snapshot:
    """Everything, except keys that did not change since `old`: a poll's cost follows the change, not the catalog.

    A version older than `old` is a restored database: everything is read afresh.
    """
    teams = {team.id: team for team in await list_teams(connection)}
    if old is None or version < old.version:
        keys = await repository.load_identities(connection, teams, since_version=None)
    else:
        changed = await repository.load_identities(connection, teams, since_version=old.version)
        keys = _merged(old, changed, teams)
    books = await load_books(connection)
    budgets = BudgetIndex.of(await list_budgets(connection))
    return Snapshot(version, now_us(), keys, teams, books, books.pins(), budgets)


def _merged(old: Snapshot, changed: dict[bytes, Identity], teams: Mapping[str, TeamRow]) -> dict[bytes, Identity]:
    """The old keys under the new ones, restated where their team changed."""
    touched = {identity.key_id for identity in changed.values()}
    restated = {team_id for team_id, team in old.teams.items() if teams[team_id] != team}
    keys = {digest: identity for digest, identity in old.keys.items() if identity.key_id not in touched}
    if restated:
        for digest, identity in keys.items():
            if identity.team_id in restated:
                keys[digest] = repository.under_team(identity, teams[identity.team_id])
    return keys | changed
