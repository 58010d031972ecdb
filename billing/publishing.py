"""Catalog writes: prices are published here, checked, or not at all (rates and terms: `recording`).

Each function takes an open transaction, first bumps the catalog version (writers queue, ids commit in order) and raises a
`BillingError` whose `field` names what is wrong. Rows are never changed: a later row closes an earlier one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.checks import check_text, parse_field
from billing.currencies import check_currency
from billing.database import bump_catalog_version
from billing.errors import Conflict, InvalidPrice
from billing.issued import refuse_backdated
from billing.money import MICRO, format_scaled
from billing.prices import UNIT_SIZE, PriceRow
from billing.times import check_time, format_time, now_us
from billing.usage import TokenClass

MAX_AMOUNT_MICRO: Final = 1_000_000_000 * MICRO
"""No price is above 1e9 currency units per unit (USD 1000 per million tokens is IDR 16 million)."""
PROCESSINGS: Final = ("standard", "batch")
_UNITS: Final[dict[TokenClass, tuple[str, ...]]] = {
    TokenClass.AUDIO_INPUT: ("mtok", "second"),
    TokenClass.AUDIO_OUTPUT: ("mtok", "second"),
    TokenClass.IMAGE_INPUT: ("mtok", "image"),
    TokenClass.IMAGE_OUTPUT: ("mtok", "image"),
    TokenClass.WEB_SEARCH: ("request",),
    TokenClass.REQUEST: ("request", "hour"),
}


@dataclass(frozen=True, slots=True)
class PriceDraft:
    """A price row before it is published; `amount` is a decimal string in `currency` per `unit`."""

    price_list: str
    model: str
    token_class: str
    currency: str
    amount: str
    effective_from_us: int
    unit: str | None = None
    service_tier: str = "default"
    processing: str = "standard"
    min_input_tokens: int = 0
    source: str | None = None


async def publish_price(
    connection: AsyncConnection,
    *,
    price_list: str,
    model: str,
    token_class: str,
    currency: str,
    amount: str,
    effective_from_us: int,
    unit: str | None = None,
    service_tier: str = "default",
    processing: str = "standard",
    min_input_tokens: int = 0,
    source: str | None = None,
) -> PriceRow:
    """Publish a new version of the book: the old one plus this row. `unit` defaults to mtok (request for per-request classes).

    Posting a row that stands already, with the same amount, returns it and publishes nothing.
    """
    draft = PriceDraft(
        price_list,
        model,
        token_class,
        currency,
        amount,
        effective_from_us,
        unit,
        service_tier,
        processing,
        min_input_tokens,
        source,
    )
    return (await publish_prices(connection, [draft]))[0]


async def publish_prices(
    connection: AsyncConnection, drafts: Sequence[PriceDraft], note: str | None = None, *, supersede: bool = False
) -> list[PriceRow]:
    """Publish all drafts as one new version, or none. Returns their rows in order.

    With `supersede` another amount for the same key and moment takes the place of the one that stands, for whoever asks the book
    from this version on; rows that were rated before keep the old one, and their pins find it.

    Raises `InvalidPrice`, `InvalidAmount`, `InvalidCurrency` or `InvalidTime` (also for a start inside an issued month), and
    `Conflict` when another amount stands for the same key from the same moment: a published row is never replaced, the next one
    starts later.
    """
    checked = [checked_price(draft) for draft in drafts]
    await bump_catalog_version(connection)
    books = tables.price_books.c
    last = (
        await connection.execute(select(books.version, books.hash).order_by(books.version.desc()).limit(1))
    ).one_or_none()
    version, digest = (1, "") if last is None else (last.version + 1, last.hash)
    rows: dict[int, PriceRow] = {}
    fresh: list[tuple[int, dict[str, Any]]] = []
    for at, values in enumerate(checked):
        standing = await _standing_price(connection, values, supersede)
        if standing is not None:
            rows[at] = standing
        elif any(_same_key(values, other) for _, other in fresh):
            raise Conflict("effective_from: two of the rows have the same key and start", field="effective_from")
        else:
            await refuse_backdated(connection, values["effective_from_us"])
            fresh.append((at, values))
    if fresh:
        digest = _digest(digest, [values for _, values in fresh])
        published_at_us = now_us()
        await connection.execute(
            insert(tables.price_books).values(version=version, published_at_us=published_at_us, hash=digest, note=note)
        )
        for at, values in fresh:
            stored = {**values, "book_version": version, "recorded_at_us": published_at_us}
            row_id = await connection.scalar(insert(tables.price_rows).values(stored).returning(tables.price_rows.c.id))
            assert row_id is not None
            rows[at] = _price_row({**stored, "id": row_id})
    return [rows[at] for at in range(len(checked))]


def _digest(previous: str, rows: Sequence[dict[str, Any]]) -> str:
    """The hash of a version: over the previous version's hash and the rows it adds, so that no version can be altered."""
    chained = hashlib.sha256(previous.encode())
    for row in rows:
        chained.update(msgspec.json.encode(row, order="sorted"))
    return chained.hexdigest()


_PRICE_KEY: Final = (
    "price_list",
    "model",
    "token_class",
    "service_tier",
    "processing",
    "min_input_tokens",
    "effective_from_us",
)


def _same_key(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return all(left[name] == right[name] for name in _PRICE_KEY)


def _price_row(values: dict[str, Any]) -> PriceRow:
    fields = {name: values[name] for name in PriceRow.__dataclass_fields__}
    return PriceRow(**{**fields, "token_class": TokenClass(fields["token_class"])})


async def _standing_price(connection: AsyncConnection, values: dict[str, Any], supersede: bool) -> PriceRow | None:
    """The row that says the same already. Raises `Conflict` where one says something else, unless that may be superseded."""
    table = tables.price_rows
    same = [table.c[name] == values[name] for name in _PRICE_KEY]
    newest = select(table).where(*same).order_by(table.c.id.desc()).limit(1)
    found = (await connection.execute(newest)).one_or_none()
    if found is None:
        return None
    row = _price_row(dict(found._mapping))
    if (row.currency, row.amount_micro, row.unit) == (values["currency"], values["amount_micro"], values["unit"]):
        return row
    if supersede:
        return None
    raise Conflict(
        f"effective_from: {row.price_list} {row.model} {row.token_class} already costs "
        f"{format_scaled(row.amount_micro, MICRO)} {row.currency} per {row.unit} from "
        f"{format_time(row.effective_from_us)} (price {row.id}); let the new price start later, or, where that one is wrong, "
        "post it with supersede and rate again what was rated with it; a draft shows beforehand what would change",
        field="effective_from",
    )


def checked_price(draft: PriceDraft) -> dict[str, Any]:
    """The row as it would be stored. Raises `InvalidPrice`, `InvalidAmount`, `InvalidCurrency` or `InvalidTime` by field."""
    for name, field in (("price_list", "provider"), ("model", "model"), ("service_tier", "service_tier")):
        check_text(getattr(draft, name), field, InvalidPrice)
    if draft.source is not None:
        check_text(draft.source, "source", InvalidPrice)
    try:
        token_class = TokenClass(draft.token_class)
    except ValueError as error:
        known = ", ".join(TokenClass)
        raise InvalidPrice(f"token_class: {draft.token_class!r} is none of {known}", field="token_class") from error
    check_currency(draft.currency, "currency")
    units = _UNITS.get(token_class, ("mtok",))
    unit = draft.unit or units[0]
    if unit not in UNIT_SIZE or unit not in units:
        raise InvalidPrice(f"unit: {token_class} is priced per {' or '.join(units)}, not per {unit!r}", field="unit")
    if draft.processing not in PROCESSINGS:
        raise InvalidPrice(f"processing: {draft.processing!r} is none of {', '.join(PROCESSINGS)}", field="processing")
    if not 0 <= draft.min_input_tokens <= 1_000_000_000:
        raise InvalidPrice(f"min_input_tokens: {draft.min_input_tokens} is outside 0..1e9", field="min_input_tokens")
    field = "amount_per_mtok" if unit == "mtok" else "amount"
    amount_micro = parse_field(draft.amount, MICRO, field)
    if not 0 <= amount_micro <= MAX_AMOUNT_MICRO:
        raise InvalidPrice(f"{field}: {draft.amount} is outside 0..1e9", field=field)
    return {
        "price_list": draft.price_list,
        "model": draft.model,
        "token_class": str(token_class),
        "currency": draft.currency,
        "amount_micro": amount_micro,
        "unit": unit,
        "service_tier": draft.service_tier,
        "processing": draft.processing,
        "min_input_tokens": draft.min_input_tokens,
        "effective_from_us": check_time(draft.effective_from_us, "effective_from"),
        "source": draft.source,
    }
