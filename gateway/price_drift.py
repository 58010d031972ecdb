"""The price book beside the list prices that are known here: the book that ships with this release, and the genai-prices package
where it is installed. What differs is an alarm for a person: a page, a metric, a log line. Nothing here writes the book.

Compared is what is in force now per million tokens or per request, standard processing, in one currency, for models that both
sides price. Of the shipped book only what is younger than our own row counts: an operator who published a price after it knows
better.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict

from billing.errors import InvalidPrice
from billing.money import MICRO, format_scaled
from billing.price_drift import Acknowledged, Drift, ListedPrice, price_drift, read_acknowledged
from billing.prices import PriceRow
from billing.publishing import PriceDraft
from billing.seed import shipped_book
from billing.times import DAY_US, format_time, now_us
from gateway.catalog import Catalog
from gateway.metrics import Metrics
from gateway.price_feed import PACKAGE, FeedError, asked, installed

logger = logging.getLogger(__name__)

FIRST_S: Final = 60.0
EVERY_S: Final = 3600.0
SHIPPED: Final = "shipped"
_UNITS: Final = ("mtok", "request", None)
"""None: a draft that leaves the unit to its class."""

Key = tuple[str, str, str, int]


class Source(Struct, frozen=True):
    """Where list prices are known from. `absent`: not installed; `failed`: it says nothing that could be compared."""

    name: str
    state: Literal["compared", "absent", "failed"]
    prices: int
    """How many of its prices stand beside ours."""
    detail: str


class SourcedDrift(Drift, frozen=True, kw_only=True):
    source: str


class DriftReport(Struct, frozen=True):
    """Differences by source, provider and model. `known`: acknowledged as they stand in `price_drift.known`."""

    data: list[SourcedDrift]
    sources: list[Source]
    as_of: str

    @property
    def new(self) -> list[SourcedDrift]:
        return [each for each in self.data if not each.known]


class PriceDrift:
    """`start` and `stop` once each; `look` compares now, or remembers the day's answer for this version of the book."""

    def __init__(self, catalog: Catalog, known: Path | None, metrics: Metrics | None = None) -> None:
        self._catalog = catalog
        self._known = known
        self._metrics = metrics
        self._looking = asyncio.Lock()
        self._seen: tuple[tuple[int, int, str], DriftReport] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="price drift")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def look(self) -> DriftReport:
        """Raises `InvalidPrice` where the acknowledged differences cannot be read."""
        known = "" if self._known is None else await asyncio.to_thread(_text_of, self._known)
        async with self._looking:
            when = (self._catalog.snapshot.books.prices.version, now_us() // DAY_US, known)
            if self._seen is None or self._seen[0] != when:
                report = await self._compare(read_acknowledged(known))
                self._seen = (when, report)
                self._tell(report)
            return self._seen[1]

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                if self._catalog.ready:
                    await self.look()
            except InvalidPrice as error:
                logger.warning("prices could not be compared: %s", error)
            except Exception:
                logger.exception("a comparison of prices failed")
            await asyncio.sleep(EVERY_S)

    async def _compare(self, known: Sequence[Acknowledged]) -> DriftReport:
        at_us = now_us()
        book = self._catalog.snapshot.books.prices
        ours = [row for row in book.current(at_us=at_us, version=book.version) if _comparable(row)]
        found: list[SourcedDrift] = []
        sources: list[Source] = []
        for source, mine, theirs in (_shipped(ours, at_us), await _package(ours)):
            try:
                drifts = price_drift(mine, theirs, known) if source.state == "compared" and theirs else []
            except InvalidPrice as error:
                source, drifts = Source(source.name, "failed", 0, str(error)), []
            sources.append(source)
            found += [SourcedDrift(**asdict(each), source=source.name) for each in drifts]
        return DriftReport(found, sources, format_time(at_us))

    def _tell(self, report: DriftReport) -> None:
        for source in report.sources:
            count = sum(each.source == source.name for each in report.new)
            if count:
                logger.warning("%d prices differ from what %s lists: `metergate price drift`", count, source.name)
            if source.state == "failed":
                logger.warning("%s was not compared with the price book: %s", source.name, source.detail)
            if self._metrics is not None and source.state != "absent":
                self._metrics.price_drift.labels(source.name).set(math.nan if source.state == "failed" else count)


def _text_of(known: Path) -> str:
    try:
        return known.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPrice(f"price_drift.known: {known} cannot be read: {error}", field="price_drift.known") from error


def _comparable(row: PriceRow | PriceDraft) -> bool:
    return row.unit in _UNITS and (row.service_tier, row.processing) == ("default", "standard")


def _key(row: PriceRow | PriceDraft) -> Key:
    return (row.price_list, row.model, str(row.token_class), row.min_input_tokens)


def _listed(row: PriceRow) -> ListedPrice:
    return ListedPrice(row.price_list, row.model, str(row.token_class), _amount(row), row.min_input_tokens)


def _amount(row: PriceRow) -> str:
    return format_scaled(row.amount_micro, MICRO)


def _shipped(ours: Sequence[PriceRow], at_us: int) -> tuple[Source, list[ListedPrice], list[ListedPrice]]:
    """What this release's book says that is younger than our rows, and our rows of the same keys."""
    book = shipped_book()
    standing = {_key(row): row for row in ours}
    theirs: dict[Key, PriceDraft] = {}
    compared = 0
    for draft in sorted(book.drafts, key=lambda each: each.effective_from_us):
        row = standing.get(_key(draft))
        if row is None or not _comparable(draft) or draft.currency != row.currency or draft.effective_from_us > at_us:
            continue
        compared += 1
        if draft.effective_from_us > row.effective_from_us:
            theirs[_key(draft)] = draft
    mine = [_listed(standing[key]) for key in theirs]
    listed = [ListedPrice(*key[:3], draft.amount, key[3]) for key, draft in theirs.items()]
    return Source(SHIPPED, "compared", compared, book.note or ""), mine, listed


async def _package(ours: Sequence[PriceRow]) -> tuple[Source, list[ListedPrice], list[ListedPrice]]:
    """All that the package lists of our models; it speaks of USD alone."""
    release = installed()
    if release is None:
        return Source(PACKAGE, "absent", 0, f"pip install {PACKAGE}"), [], []
    mine = [_listed(row) for row in ours if row.currency == "USD"]
    try:
        theirs = await asked(sorted({(each.provider, each.model) for each in mine}))
    except FeedError as error:
        return Source(PACKAGE, "failed", 0, str(error)), [], []
    return Source(PACKAGE, "compared", len(theirs), f"version {release}"), mine, theirs
