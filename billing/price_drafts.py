"""A version of the price book before it is one: drafted, looked at, published as a whole or thrown away.

A draft holds checked rows and changes nothing. Its preview says of each row what it would do to the book; publishing checks
again, in the transaction that makes the new version. A published version is superseded by the next and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.checks import check_text
from billing.database import bump_catalog_version
from billing.errors import Conflict, InvalidPrice, NotFound
from billing.money import MICRO, format_scaled
from billing.prices import PriceBook, PriceRow
from billing.publishing import PriceDraft, checked_price, publish_prices
from billing.statement_tables import price_drafts
from billing.tables import price_books
from billing.times import now_us

MAX_ROWS: Final = 5_000
NEW: Final = "new"
CHANGED: Final = "changed"
STANDING: Final = "standing"
CONFLICT: Final = "conflict"


@dataclass(frozen=True, slots=True)
class DraftedBook:
    """`state` is draft, published (as `version`) or discarded."""

    id: int
    state: str
    note: str | None
    rows: tuple[PriceDraft, ...]
    created_at_us: int
    closed_at_us: int | None
    version: int | None


@dataclass(frozen=True, slots=True)
class PreviewedPrice:
    """What a row would do: `new` prices what had no price, `changed` closes `before`, `standing` is in the book already,
    `conflict` contradicts `before`, which has the same start and another price."""

    change: str
    row: PriceDraft
    unit: str
    before: PriceRow | None


async def draft_prices(connection: AsyncConnection, rows: Sequence[PriceDraft], note: str | None = None) -> DraftedBook:
    """Keep the rows as a draft. Raises what `publish_prices` would raise for a row that cannot be."""
    check_rows(rows)
    if note is not None:
        check_text(note, "note", InvalidPrice)
    await bump_catalog_version(connection)
    stored = msgspec.json.encode([asdict(row) for row in rows]).decode()
    values = {"state": "draft", "note": note, "rows": stored, "created_at_us": now_us()}
    row_id = await connection.scalar(insert(price_drafts).values(values).returning(price_drafts.c.id))
    return await get_draft(connection, row_id or 0)


async def publish_draft(connection: AsyncConnection, draft_id: int) -> tuple[DraftedBook, list[PriceRow]]:
    """Publish a draft as one new version. Raises `Conflict` when it is closed already, holds nothing new, or contradicts the
    book."""
    await bump_catalog_version(connection)
    draft = await _open_draft(connection, draft_id)
    before = await _newest_version(connection)
    rows = await publish_prices(connection, draft.rows, draft.note)
    version = await _newest_version(connection)
    if version == before:
        raise Conflict(
            f"draft_id: every row of draft {draft_id} stands in the book already; discard it", field="draft_id"
        )
    await _close(connection, draft_id, "published", version)
    return await get_draft(connection, draft_id), rows


async def discard_price_draft(connection: AsyncConnection, draft_id: int) -> DraftedBook:
    """Raises `Conflict` when it is closed already."""
    await bump_catalog_version(connection)
    await _open_draft(connection, draft_id)
    await _close(connection, draft_id, "discarded", None)
    return await get_draft(connection, draft_id)


async def get_draft(connection: AsyncConnection, draft_id: int) -> DraftedBook:
    row = (await connection.execute(select(price_drafts).where(price_drafts.c.id == draft_id))).one_or_none()
    if row is None:
        raise NotFound(f"no price draft {draft_id}", field="id")
    return _draft(row)


async def list_drafts(connection: AsyncConnection, *, after: int = 0, limit: int) -> list[DraftedBook]:
    query = select(price_drafts).where(price_drafts.c.id > after).order_by(price_drafts.c.id).limit(limit)
    return [_draft(row) for row in await connection.execute(query)]


def check_rows(rows: Sequence[PriceDraft]) -> list[dict[str, Any]]:
    """Each row as it would be stored. Raises for the first that cannot be, and for more than 5,000 or none."""
    if not 1 <= len(rows) <= MAX_ROWS:
        raise InvalidPrice(f"prices: 1 to {MAX_ROWS} rows, not {len(rows)}", field="prices")
    return [checked_price(row) for row in rows]


def preview_prices(book: PriceBook, rows: Sequence[PriceDraft]) -> list[PreviewedPrice]:
    """What publishing these rows over the newest version of `book` would do, row by row. Writes nothing."""
    held = _by_key(book.rows)
    answer = []
    for row, values in zip(rows, check_rows(rows), strict=True):
        same_key = held.get((*_key(values), values["min_input_tokens"]), [])
        start_us = values["effective_from_us"]
        before = max((each for each in same_key if each.effective_from_us <= start_us), key=_newness, default=None)
        standing = before if before is not None and before.effective_from_us == start_us else None
        if standing is not None:
            same = (standing.currency, standing.amount_micro, standing.unit) == (
                values["currency"],
                values["amount_micro"],
                values["unit"],
            )
            change = STANDING if same else CONFLICT
        else:
            change = NEW if before is None else CHANGED
        answer.append(PreviewedPrice(change, row, values["unit"], before))
    return answer


def diff_versions(book: PriceBook, older: int, newer: int) -> list[tuple[PriceRow, PriceRow | None]]:
    """The rows that `newer` has and `older` has not, each with the row of its key that `older` had in force at its start."""
    held = _by_key(row for row in book.rows if row.book_version <= older)
    answer = []
    for row in book.diff(older, newer):
        before = max(
            (
                each
                for each in held.get((*row.key, row.min_input_tokens), [])
                if each.effective_from_us <= row.effective_from_us
            ),
            key=_newness,
            default=None,
        )
        answer.append((row, before))
    return answer


def _newness(row: PriceRow) -> tuple[int, int]:
    """Of two rows of a key, which one a lookup finds."""
    return row.effective_from_us, row.id


def as_draft(row: PriceRow) -> PriceDraft:
    """A published row as a draft of the same price."""
    return PriceDraft(
        price_list=row.price_list,
        model=row.model,
        token_class=str(row.token_class),
        currency=row.currency,
        amount=format_scaled(row.amount_micro, MICRO),
        effective_from_us=row.effective_from_us,
        unit=row.unit,
        service_tier=row.service_tier,
        processing=row.processing,
        min_input_tokens=row.min_input_tokens,
        source=row.source,
    )


def _by_key(rows: Iterable[PriceRow]) -> dict[tuple[Any, ...], list[PriceRow]]:
    held: dict[tuple[Any, ...], list[PriceRow]] = {}
    for row in rows:
        held.setdefault((*row.key, row.min_input_tokens), []).append(row)
    return held


def _key(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(values[name] for name in ("price_list", "model", "token_class", "service_tier", "processing"))


async def _newest_version(connection: AsyncConnection) -> int:
    return int(
        await connection.scalar(select(price_books.c.version).order_by(price_books.c.version.desc()).limit(1)) or 0
    )


async def _open_draft(connection: AsyncConnection, draft_id: int) -> DraftedBook:
    draft = await get_draft(connection, draft_id)
    if draft.state != "draft":
        raise Conflict(f"draft_id: price draft {draft_id} is {draft.state} already", field="draft_id")
    return draft


async def _close(connection: AsyncConnection, draft_id: int, state: str, version: int | None) -> None:
    closed = {"state": state, "closed_at_us": now_us(), "version": version}
    await connection.execute(update(price_drafts).where(price_drafts.c.id == draft_id).values(closed))


def _draft(row: Row[Any]) -> DraftedBook:
    values = dict(row._mapping)
    rows = tuple(msgspec.json.decode(values["rows"], type=list[PriceDraft]))
    return DraftedBook(**{**values, "rows": rows})
