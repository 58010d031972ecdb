"""From paired records to committed rows: rate with the pinned books, write in sorted batches, split a batch that fails.

A shipper never gives up and never skips: `ship` returns when every item is a row (new, or there already) or a dead letter,
and raises `Outage` when the database cannot take it now. Shipping the same items again is harmless.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.books import Books, Pins, load_books
from billing.corrections import correct, lost_among, settled_among
from billing.database import BUSY_TIMEOUT_MS, open_database, reading
from billing.errors import AmountOverflow
from billing.ledger import UsageRecord, record
from billing.watermarks import raise_watermark
from gateway.ids import new_request_id
from gateway.metering.bill import LOST, usage_record
from gateway.metering.counting import count
from gateway.metering.dead_letters import DeadLetter, letter, resolve, set_aside, unresolved
from gateway.metering.errors import MeteringError
from gateway.metering.pace import Pace, begin_last
from gateway.metering.pairing import Paired, Stray
from gateway.metering.verdict import Verdict, judge
from gateway.metering.watermarks import Mark
from gateway.metrics import Metrics

if TYPE_CHECKING:
    from gateway.telemetry.exporter import Exporter

log = logging.getLogger(__name__)

SYSTEMATIC: Final = 8
"""When so many rows fail for no fault of what they hold, and none of their batch passes, they are not to blame: they wait."""

UNCHARGED: Final = (
    "its row stands without an amount, and every budget and prepaid wallet over it is exhausted until the row is reversed or "
    "rated again (POST /admin/v1/usage/requests/{id}/corrections)"
)
"""What is said of a charge beyond 64 bits. Its letter is there to be seen: it holds the month's statement back."""
DISPOSE_S: Final = 3.0

_Result = TypeVar("_Result")


class Outage(MeteringError):
    """The database cannot take the batch now; `verdict` says why. Ship the same items again later."""

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


@dataclass(slots=True)
class Shipped:
    """What became of the items: rows `inserted`, rows that were there already, letters set aside (or
    resolved by a replay), lost rows corrected."""

    inserted: int = 0
    duplicates: int = 0
    set_aside: int = 0
    corrected: int = 0
    resolved: int = 0

    def add(self, other: Shipped) -> None:
        self.inserted += other.inserted
        self.duplicates += other.duplicates
        self.set_aside += other.set_aside
        self.corrected += other.corrected
        self.resolved += other.resolved


@dataclass(frozen=True, slots=True)
class _Ready:
    item: Paired
    row: UsageRecord


@dataclass(frozen=True, slots=True)
class _Guilty:
    """A row that cannot be written even alone. `certain`: for what it holds, and so however many others there are."""

    letter: DeadLetter
    certain: bool


class Shipper:
    """One connection to the books. Used from one event loop."""

    def __init__(
        self, database_url: str, metrics: Metrics, *, timeout_s: float = 30.0, exporter: Exporter | None = None
    ) -> None:
        """`timeout_s` bounds each transaction, so that a server that does not answer is an outage and not a hang. `exporter` is
        told of each row that is new."""
        self._url = database_url
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._exporter = exporter
        self._engine: AsyncEngine | None = None
        self._books: Books | None = None
        self._pace = Pace()

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.dispose()

    async def ship(self, journal: str, items: Sequence[Paired | Stray]) -> Shipped:
        """Raises `Outage`; some of the items may be committed by then."""
        shipped = Shipped()
        letters = await self._letters_of_strays(journal, [item for item in items if isinstance(item, Stray)], shipped)
        ready: list[_Ready] = []
        paired = [item for item in items if isinstance(item, Paired)]
        books = await self._books_for(paired)
        beyond = _beyond(books, paired)
        for item in paired:
            made = _rated(books, item, beyond)
            if not isinstance(made, UsageRecord):
                letters.append(letter(journal, item, made))
                continue
            ready.append(_Ready(item, made))
            if made.rated.overflow:
                letters.append(letter(journal, item, f"{made.rated.unpriced}; {UNCHARGED}"))
        ready.sort(key=lambda one: one.row.id.int)
        guilty: list[_Guilty] = []
        at = 0
        while at < len(ready):
            part = ready[at : at + self._pace.rows]
            await self._write(journal, part, shipped, guilty)
            at += len(part)
        doubtful = [one for one in guilty if not one.certain]
        outage = len(guilty) == len(ready) and len(doubtful) >= SYSTEMATIC
        letters += [one.letter for one in guilty if one.certain or not outage]
        if letters:
            await self._set_aside(journal, letters, shipped)
        if outage:
            raise Outage(f"no row of {len(ready)} can be written: {doubtful[0].letter.reason}", Verdict.DOUBT)
        return shipped

    async def _letters_of_strays(self, journal: str, strays: Sequence[Stray], shipped: Shipped) -> list[DeadLetter]:
        """An outcome whose row is in the books is no stray: its attempt lay in a segment that went after it was shipped."""
        letters = [letter(journal, item, item.reason) for item in strays]
        ids = [one.request_id for one in letters if one.request_id is not None]
        if not ids:
            return letters
        known = set(await self._transact(lambda connection: settled_among(connection, ids)))
        found = [one for one in letters if one.request_id not in known]
        shipped.duplicates += len(letters) - len(found)
        self._metrics.recorder_duplicates.inc(len(letters) - len(found))
        return found

    async def _set_aside(self, journal: str, letters: Sequence[DeadLetter], shipped: Shipped) -> None:
        shipped.set_aside = await self._transact(lambda connection: set_aside(connection, letters))
        self._metrics.dead_letters.inc(shipped.set_aside)
        if shipped.set_aside:
            for one in letters:
                log.error(
                    "journal %s: request %s is set aside as %s: %s", journal, one.request_id, one.digest, one.reason
                )

    async def tell(self, marks: Sequence[Mark]) -> None:
        """Raises the journals' watermarks. Raises `Outage`."""

        async def work(connection: AsyncConnection) -> None:
            for mark in sorted(marks):
                await raise_watermark(connection, mark.journal, mark.watermark_us, complete=mark.complete)

        await self._transact(work)

    async def retry_dead_letters(self) -> Shipped:
        """Tries every unresolved letter again; those that become rows (or are rows already) are marked resolved."""
        total, after = Shipped(), ""
        while letters := await self._letters_after(after):
            after = letters[-1].digest
            for one in letters:
                if await self._retry_letter(one, total):
                    total.resolved += 1
        return total

    async def _letters_after(self, after: str) -> list[DeadLetter]:
        return await self._transact(lambda connection: unresolved(connection, after))

    async def _retry_letter(self, one: DeadLetter, shipped: Shipped) -> bool:
        item = one.request()
        if item is None:
            return False
        books = await self._books_for([item])
        made = _rated(books, item, _beyond(books, [item]))
        if not isinstance(made, UsageRecord):
            return False
        guilty: list[_Guilty] = []
        await self._write(one.journal, [_Ready(item, made)], shipped, guilty)
        if guilty:
            return False
        await self._transact(lambda connection: resolve(connection, one.digest))
        return True

    async def _books_for(self, items: Sequence[Paired]) -> Books:
        """Books that hold everything the items pin, read again when they pin something newer."""
        books = self._books
        if books is None or _beyond(books, items):
            books = self._books = await self._guarded(self._load)
        return books

    async def _load(self) -> Books:
        async with reading(self._database()) as connection:
            return await load_books(connection)

    async def _write(self, journal: str, ready: Sequence[_Ready], shipped: Shipped, guilty: list[_Guilty]) -> None:
        """Commits `ready` in one transaction, or in halves when something in it cannot be written."""
        if not ready:
            return
        try:
            await self._commit(ready, shipped)
        except Outage:
            raise
        except Exception as error:
            if len(ready) == 1:
                if isinstance(error, AmountOverflow) and await self._without_amounts(
                    journal, ready[0], shipped, guilty
                ):
                    return
                found = letter(journal, ready[0].item, _said(error))
                guilty.append(_Guilty(found, judge(error) is Verdict.CONTENT))
                return
            middle = len(ready) // 2
            await self._write(journal, ready[:middle], shipped, guilty)
            await self._write(journal, ready[middle:], shipped, guilty)

    async def _without_amounts(self, journal: str, one: _Ready, shipped: Shipped, guilty: list[_Guilty]) -> bool:
        """A row with which a sum would leave 64 bits stands without amounts, flagged and reported: it is not free."""
        if one.row.rated.overflow:
            return False
        rated = one.row.rated.without_amounts("with it a sum of the books would leave 64 bits")
        try:
            await self._commit([_Ready(one.item, msgspec.structs.replace(one.row, rated=rated))], shipped)
        except AmountOverflow:
            return False
        guilty.append(_Guilty(letter(journal, one.item, f"{rated.unpriced}; {UNCHARGED}"), certain=True))
        return True

    async def _commit(self, ready: Sequence[_Ready], shipped: Shipped) -> None:
        rows = [one.row for one in ready]
        start_s = time.monotonic()
        result = await self._transact(lambda connection: record(connection, rows))
        self._pace.took(len(rows), time.monotonic() - start_s)
        shipped.inserted += result.inserted
        shipped.duplicates += result.duplicates
        self._metrics.recorder_rows.inc(result.inserted)
        self._metrics.recorder_duplicates.inc(result.duplicates)
        count(self._metrics, [row for row in rows if row.id in result.new_ids] if result.duplicates else rows)
        if self._exporter is not None:
            new = [one for one in ready if not result.duplicates or one.row.id in result.new_ids]
            self._exporter.tell((one.row, one.item.opened[0].trace) for one in new)
        if result.duplicates:
            await self._correct([row for row in rows if row.id not in result.new_ids], shipped)

    async def _correct(self, rows: Sequence[UsageRecord], shipped: Shipped) -> None:
        """Rows that are there already: where one says `lost` and we know the outcome, it is put right."""
        known = {row.id: row for row in rows if row.status != LOST}
        if not known:
            return
        wrong = await self._transact(lambda connection: lost_among(connection, list(known)))
        for one in wrong:
            if await self._correct_one(known[one]):
                shipped.corrected += 1
                self._metrics.corrected.inc()
                log.info("request %s: a lost row is corrected by the outcome that turned up", one)

    async def _correct_one(self, truth: UsageRecord) -> bool:
        ids = (new_request_id(), new_request_id())
        return await self._transact(lambda connection: correct(connection, truth, ids))

    async def _transact(self, work: Callable[[AsyncConnection], Awaitable[_Result]]) -> _Result:
        """`work` in a transaction of its own. Raises `Outage`, or the error itself where a row is to blame."""

        async def transaction() -> _Result:
            async with begin_last(self._database()) as connection:
                return await work(connection)

        return await self._guarded(transaction)

    async def _guarded(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work()
        except Exception as error:
            verdict = judge(error)
            if verdict in (Verdict.CONTENT, Verdict.DOUBT):
                raise
            if verdict is not Verdict.CONFLICT:
                await self._drop_connections()
            raise Outage(_said(error), verdict) from error

    def _database(self) -> AsyncEngine:
        if self._engine is None:
            # A wait inside the driver cannot be broken off from outside, so it has to be the shorter one.
            busy_ms = min(BUSY_TIMEOUT_MS, int(self._timeout_s * 800))
            self._engine = open_database(self._url, pool_size=1, busy_timeout_ms=busy_ms, inline=True)
        return self._engine

    async def _drop_connections(self) -> None:
        """After a failure of the connection the next try starts with a new one; the old one may hang, so nobody waits long."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            async with asyncio.timeout(DISPOSE_S):
                await engine.dispose()
        except Exception as error:
            log.info("closing a failed database connection: %s: %s", type(error).__name__, error)


def _beyond(books: Books, items: Sequence[Paired]) -> set[Pins]:
    """The pins among the items' that name something newer than these books hold."""
    own = books.pins()
    return {
        pins
        for pins in {item.opened[0].pins for item in items}
        if pins.book > own.book or pins.rates > own.rates or pins.terms > own.terms or pins.sell > own.sell
    }


def _rated(books: Books, item: Paired, beyond: set[Pins]) -> UsageRecord | str:
    """The row, or why there is none."""
    if beyond and (pins := item.opened[0].pins) in beyond:
        return (
            f"opened with price book {pins.book}, rates {pins.rates}, terms {pins.terms}, sell prices {pins.sell}, but the "
            f"database ends at {books.pins()}: was an older copy restored? Post what is missing, then replay the dead letters"
        )
    try:
        return usage_record(books, item.opened, item.closed)
    except Exception as error:  # whatever is wrong with one record must not hold up the others
        return _said(error)


def _said(error: Exception) -> str:
    """The error in its own words, without the statement and its parameters: they hold callers' tags."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"{type(error).__name__}: {cause}"
