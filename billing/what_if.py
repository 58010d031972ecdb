"""What would it have cost? A past range rated again under another book, other terms or another route, without touching it.

Every request of the range is rated anew with its own pins and its own moment, except for what the alternative changes; beside
the result stands what the row says. Requests that were put right are taken as they were put right. Nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.books import Books, Pins, load_books
from billing.currencies import check_currency
from billing.differences import Difference, Group
from billing.errors import InvalidQuery
from billing.prices import PriceBook, PriceRow
from billing.publishing import PriceDraft, checked_price
from billing.rating import AttemptUsage, Payer, rate
from billing.reads import parse_ids
from billing.recording import checked_terms
from billing.rerating import hourly
from billing.tables import attempts, corrections, usage, usage_lines
from billing.terms import TermsBook, TermsRow
from billing.times import DAY_US, first_id_at, time_us_of
from billing.usage import TokenClass, Usage

MAX_REQUESTS: Final = 100_000
MAX_RANGE_US: Final = 92 * DAY_US
_CHUNK: Final = 250


@dataclass(frozen=True, slots=True)
class OtherTerms:
    """As if every team that settles in `quote` had these terms for list prices in `base`."""

    policy: str
    base: str
    quote: str
    rate: str | None = None
    bps: int | None = None


@dataclass(frozen=True, slots=True)
class OtherRoute:
    """As if `provider`'s `model`, priced on `price_list`, had answered."""

    provider: str
    price_list: str
    model: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """What to change; None and empty leave things as they were. `prices` hold for the whole range, whenever they start;
    `priced_at_us` takes all prices as they are in force at that moment, `version` as that version of the book knows them."""

    version: int | None = None
    priced_at_us: int | None = None
    prices: tuple[PriceDraft, ...] = ()
    terms: OtherTerms | None = None
    route: OtherRoute | None = None


async def what_if(
    connection: AsyncConnection,
    alternative: Alternative,
    start_us: int,
    end_us: int,
    *,
    team_id: str | None = None,
    model: str | None = None,
) -> list[Difference]:
    """The table of differences, by team and model. Raises `InvalidQuery` for an empty alternative, a range beyond 92 days or
    100,000 requests, and whatever a price or terms row of the alternative would raise."""
    if alternative == Alternative():
        raise InvalidQuery(
            "prices: name what would be different: version, priced_at, prices, terms or route", field="prices"
        )
    if not 0 < end_us - start_us <= MAX_RANGE_US:
        raise InvalidQuery("end: a what-if covers up to 92 days, and its end lies after its start", field="end")
    world = _World(await load_books(connection), alternative)
    groups: dict[tuple[str, str], Group] = {}
    count = 0
    async for chunk in _requests(connection, start_us, end_us, team_id, model):
        count += len(chunk)
        if count > MAX_REQUESTS:
            raise InvalidQuery(f"end: more than {MAX_REQUESTS} requests; ask for less at a time", field="end")
        for each in chunk:
            world.rate(each, groups.setdefault((each.row.team_id, each.row.model), Group()))
        await asyncio.sleep(0)
    return [group.difference(*key) for key, group in sorted(groups.items())]


@dataclass(frozen=True, slots=True)
class _Request:
    row: Row[Any]
    counts: dict[str, int]
    attempt: Row[Any] | None


class _World:
    """The books as the alternative has them."""

    def __init__(self, books: Books, alternative: Alternative) -> None:
        self._alternative = alternative
        self._actual = books
        version = books.prices.version if alternative.version is None else alternative.version
        if version > books.prices.version:
            raise InvalidQuery(f"version: the newest version of the book is {books.prices.version}", field="version")
        rows: Iterable[PriceRow] = books.prices.rows
        if alternative.priced_at_us is not None:
            rows = _for_ever(books.prices.current(at_us=alternative.priced_at_us, version=version))
        self._prices = PriceBook(_overlaid(rows, alternative.prices), books.prices.version)
        self._terms = None if alternative.terms is None else _checked(alternative.terms)
        self._books: dict[str, Books] = {}

    def rate(self, request: _Request, group: Group) -> None:
        row = request.row
        attempt = self._attempt(request)
        pins = Pins(row.pin_book, row.pin_rates, row.pin_terms, row.pin_sell)
        if self._alternative.version is not None:
            pins = Pins(self._alternative.version, pins.rates, pins.terms, pins.sell)
        rated = rate(
            self._books_for(row.team_id),
            pins,
            at_us=time_us_of(row.id),
            payer=Payer(row.team_id, row.settlement_currency),
            charged=attempt,
            attempts=[attempt],
        )
        group.add(row, rated)

    def _attempt(self, request: _Request) -> AttemptUsage:
        row, route = request.row, self._alternative.route
        used = Usage(**request.counts, reasoning=row.reasoning, compute_us=row.compute_us, flaw=None)
        if route is not None:
            return AttemptUsage(1, route.price_list, route.model, route.provider, used)
        provider, attempt = row.provider or "", request.attempt
        priced = None if attempt is None else next(iter(parse_ids(attempt.price_row_ids)), None)
        found = None if priced is None else self._actual.prices.by_id(priced)
        return AttemptUsage(
            1,
            provider if found is None else found.price_list,
            row.provider_model or row.model,
            provider,
            used,
            "default" if attempt is None else attempt.service_tier,
            "standard" if attempt is None else attempt.processing,
            None if attempt is None else hourly(attempt),
        )

    def _books_for(self, team_id: str) -> Books:
        """Other terms are each team's own; without any, all teams share one."""
        key = team_id if self._terms is not None else ""
        books = self._books.get(key)
        if books is None:
            terms = self._actual.terms if self._terms is None else _with_terms(self._actual.terms, team_id, self._terms)
            books = self._books[key] = Books(self._prices, self._actual.rates, terms, self._actual.sell)
        return books


def _for_ever(rows: Iterable[PriceRow]) -> list[PriceRow]:
    return [replace(row, effective_from_us=0, book_version=0) for row in rows]


def _overlaid(rows: Iterable[PriceRow], drafts: Sequence[PriceDraft]) -> list[PriceRow]:
    """The rows with the drafted ones in the place of theirs, in force at all times; they have ids that no row has."""
    kept = list(rows)
    added = []
    next_id = max((row.id for row in kept), default=0) + 1
    for at, draft in enumerate(drafts):
        values = checked_price(draft)
        values |= {"token_class": TokenClass(values["token_class"]), "effective_from_us": 0}
        added.append(PriceRow(id=next_id + at, book_version=0, **values))
    keys = {(*row.key, row.min_input_tokens) for row in added}
    if len(keys) != len(added):
        raise InvalidQuery("prices: two of the rows have the same key", field="prices")
    return [row for row in kept if (*row.key, row.min_input_tokens) not in keys] + added


def _checked(terms: OtherTerms) -> TermsRow:
    check_currency(terms.base, "terms.base")
    check_currency(terms.quote, "terms.quote")
    rate_pico = checked_terms(terms.policy, terms.rate, terms.bps, terms.base, terms.quote)
    return TermsRow(0, "", None, terms.policy, rate_pico, terms.bps, terms.base, terms.quote, 0)


def _with_terms(book: TermsBook, team_id: str, terms: TermsRow) -> TermsBook:
    others = [row for row in book.rows if (row.team_id, row.base, row.quote) != (team_id, terms.base, terms.quote)]
    return TermsBook([*others, replace(terms, team_id=team_id)])


async def _requests(
    connection: AsyncConnection, start_us: int, end_us: int, team_id: str | None, model: str | None
) -> AsyncIterator[list[_Request]]:
    columns = usage.c
    where = [columns.id < first_id_at(end_us), columns.kind != "reversal"]
    if team_id is not None:
        where.append(columns.team_id == team_id)
    if model is not None:
        where.append(columns.model == model)
    after, inclusive = first_id_at(start_us), True
    while True:
        behind = columns.id >= after if inclusive else columns.id > after
        query = select(usage).where(behind, *where).order_by(columns.id).limit(_CHUNK)
        rows = (await connection.execute(query)).all()
        if not rows:
            return
        after, inclusive = rows[-1].id, False
        yield await _whole(connection, rows)


async def _whole(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[_Request]:
    """The rows that stand, with their counts and the attempt that answered. A request that used nothing costs nothing either
    way and is left out."""
    ids = [row.id for row in rows]
    done = corrections.c
    gone = set((await connection.execute(select(done.original_id).where(done.original_id.in_(ids)))).scalars())
    counts: dict[UUID, dict[str, int]] = {}
    for line in await connection.execute(select(usage_lines).where(usage_lines.c.usage_id.in_(ids))):
        if line.token_class != TokenClass.REQUEST:
            counts.setdefault(line.usage_id, {})[line.token_class] = line.quantity
        else:
            counts.setdefault(line.usage_id, {})
    tries: dict[UUID, list[Row[Any]]] = {}
    query = select(attempts).where(attempts.c.usage_id.in_(ids)).order_by(attempts.c.sequence)
    for attempt in await connection.execute(query):
        tries.setdefault(attempt.usage_id, []).append(attempt)
    return [
        _Request(row, counts[row.id], _answering(row, tries.get(row.id, [])))
        for row in rows
        if row.id not in gone and row.id in counts
    ]


def _answering(row: Row[Any], tries: Sequence[Row[Any]]) -> Row[Any] | None:
    same = [each for each in tries if (each.provider, each.provider_model) == (row.provider, row.provider_model)]
    return same[-1] if same else None
