"""Versions of the price book: listed, compared, explained; drafted, imported from a file, published whole."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from litestar import Controller, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta, Struct

from billing.catalog_lists import PriceBookRow, list_price_books
from billing.errors import InvalidPrice
from billing.money import INT64_MAX
from billing.price_drafts import (
    MAX_ROWS,
    DraftedBook,
    PreviewedPrice,
    diff_versions,
    discard_price_draft,
    draft_prices,
    get_draft,
    list_drafts,
    preview_prices,
    publish_draft,
)
from billing.price_file import parse_csv, parse_yaml
from billing.prices import PriceBook
from billing.publishing import PriceDraft, publish_prices
from billing.times import format_time, now_us
from billing.usage import TokenClass
from gateway.admin.failures import invalid, missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.price_bodies import PostPrice, PriceAnswer, answer_of, draft_of
from gateway.admin.services import Injected, Rooms
from gateway.admin.texts import Note, moment, moment_us

Content = Annotated[str, Meta(min_length=1, max_length=1_000_000)]
Version = Annotated[int | None, QueryParameter(ge=0, le=INT64_MAX)]
Name = Annotated[str, QueryParameter(min_length=1, max_length=300)]


class PriceBookView(Struct, frozen=True):
    """`added`: rows that this version added to the one before. The newest version is `published`, the others `superseded`."""

    version: int
    state: str
    published_at: str | None
    hash: str
    note: str | None
    added: int


class PriceBookPage(Struct, frozen=True):
    data: list[PriceBookView]
    next_cursor: str | None


class DraftPrices(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows as `prices`, or a file as `content` in `format` yaml or csv."""

    prices: Annotated[list[PostPrice], Meta(max_length=MAX_ROWS)] | None = None
    format: Literal["yaml", "csv"] | None = None
    content: Content | None = None
    note: Note | None = None


class ImportPrices(DraftPrices, frozen=True, forbid_unknown_fields=True):
    """As a draft, published at once; with `dry_run` only looked at."""

    dry_run: bool = False


class Preview(Struct, frozen=True):
    """`change`: new, changed (closes `before`), standing (in the book already) or conflict (`before` has the same start)."""

    change: str
    provider: str
    model: str
    token_class: str
    service_tier: str
    processing: str
    min_input_tokens: int
    amount: str
    currency: str
    unit: str
    effective_from: str
    before: PriceAnswer | None


class DraftSummary(Struct, frozen=True):
    id: int
    state: str
    note: str | None
    rows: int
    created_at: str | None
    closed_at: str | None
    version: int | None


class DraftView(DraftSummary, frozen=True):
    prices: list[Preview]


class DraftPage(Struct, frozen=True):
    data: list[DraftSummary]
    next_cursor: str | None


class Imported(Struct, frozen=True):
    """`version`: the one that holds the rows; null for a dry run."""

    dry_run: bool
    version: int | None
    prices: list[Preview]


class Difference(Struct, frozen=True):
    price: PriceAnswer
    before: PriceAnswer | None


class Differences(Struct, frozen=True):
    older: int
    newer: int
    data: list[Difference]


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object."""


def _id(draft_id: int) -> int:
    """A row id of a path; 404 for a number that no row can have."""
    if not 0 < draft_id <= INT64_MAX:
        raise missing("price draft", draft_id)
    return draft_id


class PriceBooksController(Controller):
    path = "/price-books"
    tags = ("prices",)

    @get(summary="List the published versions of the book")
    async def index(self, rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> PriceBookPage:
        async with rooms.read() as connection:
            rows = await list_price_books(connection, after=after_id(cursor), limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.version)
        newest = page[-1].version if page and next_cursor is None else None
        return PriceBookPage([_book(row, newest) for row in page], next_cursor)

    @get("/{version:int}/diff", summary="What a version added, beside what it closed")
    async def diff(self, version: FromPath[int], rooms: Injected, against: Version = None) -> Differences:
        book = _book_of(rooms)
        if not 1 <= version <= book.version:
            raise missing("price book", version)
        older = version - 1 if against is None else against
        if older > version:
            raise invalid(f"against: {older} is newer than {version}", "against")
        pairs = diff_versions(book, older, version)
        return Differences(
            older,
            version,
            [Difference(answer_of(row), None if before is None else answer_of(before)) for row, before in pairs],
        )

    @post("/import", summary="Publish a file or rows as one version, or see what it would do (dry_run)")
    async def imported(self, data: JSONBody[ImportPrices], rooms: Injected) -> Imported:
        drafts, note = await asyncio.to_thread(_rows_of, data)
        if data.dry_run:
            return Imported(True, None, _previews(preview_prices(_book_of(rooms), drafts)))
        async with rooms.write() as write:
            previews = _previews(preview_prices(_book_of(rooms), drafts))
            rows = await publish_prices(write.connection, drafts, note)
            return rooms.done(Imported(False, max(row.book_version for row in rows), previews))

    @post("/drafts", summary="Keep rows as a draft of the next version")
    async def draft(self, data: JSONBody[DraftPrices], rooms: Injected) -> DraftView:
        drafts, note = await asyncio.to_thread(_rows_of, data)
        async with rooms.write() as write:
            kept = await draft_prices(write.connection, drafts, note)
            return rooms.done(_draft(kept, _book_of(rooms)))

    @get("/drafts", summary="List drafts of the book")
    async def drafts(self, rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> DraftPage:
        async with rooms.read() as connection:
            rows = await list_drafts(connection, after=after_id(cursor), limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return DraftPage([DraftSummary(**_fields(row)) for row in page], next_cursor)

    @get("/drafts/{draft_id:int}", summary="A draft, with what each row would do to the book")
    async def one(self, draft_id: FromPath[int], rooms: Injected) -> DraftView:
        async with rooms.read() as connection:
            draft = await get_draft(connection, _id(draft_id))
        return _draft(draft, _book_of(rooms))

    @post("/drafts/{draft_id:int}/publish", summary="Publish a draft as one new version")
    async def publish(self, draft_id: FromPath[int], data: JSONBody[NoFields], rooms: Injected) -> DraftSummary:
        async with rooms.write() as write:
            rooms.editing(DraftSummary(**_fields(await get_draft(write.connection, _id(draft_id)))))
            draft, _ = await publish_draft(write.connection, _id(draft_id))
            return rooms.done(DraftSummary(**_fields(draft)))

    @post("/drafts/{draft_id:int}/discard", summary="Throw a draft away")
    async def discard(self, draft_id: FromPath[int], data: JSONBody[NoFields], rooms: Injected) -> DraftSummary:
        async with rooms.write() as write:
            rooms.editing(DraftSummary(**_fields(await get_draft(write.connection, _id(draft_id)))))
            return rooms.done(DraftSummary(**_fields(await discard_price_draft(write.connection, _id(draft_id)))))


class Explained(Struct, frozen=True):
    """One row of the key and why it applies or does not."""

    applies: bool
    why: str
    price: PriceAnswer


class Explanation(Struct, frozen=True):
    """`price` is the row that applies; null: unpriced."""

    at: str
    version: int
    price: PriceAnswer | None
    rows: list[Explained]


class PriceExplanationController(Controller):
    path = "/prices/explain"
    tags = ("prices",)

    @get(summary="Which row prices a class at a moment, and why the others do not")
    async def explain(
        self,
        rooms: Injected,
        provider: Name,
        model: Name,
        token_class: Name,
        at: Annotated[str | None, QueryParameter(max_length=40)] = None,
        version: Version = None,
        total_input: Annotated[int, QueryParameter(ge=0, le=INT64_MAX)] = 0,
        service_tier: Annotated[str, QueryParameter(max_length=300)] = "default",
        processing: Annotated[str, QueryParameter(max_length=20)] = "standard",
    ) -> Explanation:
        book = _book_of(rooms)
        at_us = moment_us(at, "at")
        at_us = now_us() if at_us is None else at_us
        try:
            wanted = TokenClass(token_class)
        except ValueError as error:
            raise invalid(f"token_class: {token_class!r} is none of {', '.join(TokenClass)}", "token_class") from error
        seen = book.version if version is None else version
        asked: dict[str, Any] = {
            "at_us": at_us,
            "version": seen,
            "total_input": total_input,
            "service_tier": service_tier,
            "processing": processing,
        }
        rows = book.explain(provider, model, wanted, **asked)
        chosen = book.find(provider, model, wanted, **asked)
        return Explanation(
            format_time(at_us),
            seen,
            None if chosen is None else answer_of(chosen),
            [Explained(row is chosen, why, answer_of(row)) for row, why in rows],
        )


def _book_of(rooms: Rooms) -> PriceBook:
    return rooms.services.catalog.snapshot.books.prices


def _rows_of(data: DraftPrices) -> tuple[list[PriceDraft], str | None]:
    """The rows that a body gives, one way or the other. A file of a megabyte takes a second."""
    if (data.prices is None) == (data.content is None):
        raise invalid("prices: give rows, or a file as content, and not both", "prices")
    if data.prices is not None:
        if data.format is not None:
            raise invalid("format: belongs to content", "format")
        return [draft_of(each, at=f"prices[{position}].") for position, each in enumerate(data.prices)], data.note
    assert data.content is not None
    if data.format is None:
        raise invalid("format: say whether content is yaml or csv", "format")
    parsed = parse_yaml(data.content) if data.format == "yaml" else parse_csv(data.content)
    if parsed.rates:
        raise InvalidPrice(
            "rates: a price file's rates are not imported here; record each with POST rates", field="rates"
        )
    return parsed.drafts, data.note or parsed.note


def _previews(rows: list[PreviewedPrice]) -> list[Preview]:
    return [
        Preview(
            change=each.change,
            provider=each.row.price_list,
            model=each.row.model,
            token_class=each.row.token_class,
            service_tier=each.row.service_tier,
            processing=each.row.processing,
            min_input_tokens=each.row.min_input_tokens,
            amount=each.row.amount,
            currency=each.row.currency,
            unit=each.unit,
            effective_from=format_time(each.row.effective_from_us),
            before=None if each.before is None else answer_of(each.before),
        )
        for each in rows
    ]


def _draft(row: DraftedBook, book: PriceBook) -> DraftView:
    return DraftView(**_fields(row), prices=_previews(preview_prices(book, row.rows)))


def _fields(row: DraftedBook) -> dict[str, Any]:
    return {
        "id": row.id,
        "state": row.state,
        "note": row.note,
        "rows": len(row.rows),
        "created_at": moment(row.created_at_us),
        "closed_at": moment(row.closed_at_us),
        "version": row.version,
    }


def _book(row: PriceBookRow, newest: int | None) -> PriceBookView:
    state = "published" if row.version == newest else "superseded"
    return PriceBookView(row.version, state, moment(row.published_at_us), row.hash, row.note, row.added)
