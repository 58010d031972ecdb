"""Reading usage rows back, each with everything it was computed from. Lists page by id, newest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, TextClause, and_, not_, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.errors import InvalidQuery
from billing.exchange import RateKind, RateRow
from billing.prices import PriceRow
from billing.records import (
    AttemptView,
    CorrectionView,
    LineView,
    MoneyView,
    PriceView,
    RateView,
    SellView,
    TermsView,
    UsageView,
)
from billing.selling import SellRow
from billing.terms import TermsRow
from billing.times import first_id_at, format_time, time_us_of
from billing.usage import TokenClass
from billing.views import price_view, rate_view, saving_percent, sell_view, terms_view

MAX_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class UsageFilters:
    """Which usage rows: None means any. `start_us` is inside the range, `end_us` is not."""

    team_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    provider: str | None = None
    status: str | None = None
    unpriced: bool | None = None
    negative_margin: bool | None = None
    start_us: int | None = None
    end_us: int | None = None


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Rows newest first; `next_cursor` is None on the last page."""

    data: list[UsageView]
    next_cursor: str | None


async def usage_row(connection: AsyncConnection, request_id: UUID) -> UsageView | None:
    """The row of one request, or None."""
    query = select(tables.usage).where(tables.usage.c.id == request_id)
    found = (await connection.execute(query)).all()
    views = await _views(connection, found)
    return views[0] if views else None


async def list_usage(
    connection: AsyncConnection, filters: UsageFilters, cursor: str | None = None, limit: int = 50
) -> UsagePage:
    """One page. Raises `InvalidQuery` for a cursor that this list did not give out or a limit outside 1..500."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidQuery(f"limit: {limit} is outside 1..{MAX_PAGE}", field="limit")
    columns = tables.usage.c
    where: list[ColumnElement[bool] | TextClause] = []
    for name in ("team_id", "key_id", "model", "provider", "status"):
        value = getattr(filters, name)
        if value is not None:
            where.append(columns[name] == value)
    if filters.status not in (None, "completed"):
        where.append(text(tables.NOT_COMPLETED))
    if filters.unpriced is not None:
        where.append(columns.unpriced.is_not(None) if filters.unpriced else columns.unpriced.is_(None))
    if filters.negative_margin is not None:
        negative = and_(columns.margin_nano < 0, columns.kind != "reversal")
        where.append(negative if filters.negative_margin else or_(columns.margin_nano.is_(None), not_(negative)))
    if filters.start_us is not None:
        where.append(columns.id >= first_id_at(filters.start_us))
    if filters.end_us is not None:
        where.append(columns.id < first_id_at(filters.end_us))
    if cursor is not None:
        where.append(columns.id < parse_request_id(cursor, "cursor"))
    query = select(tables.usage).where(*where).order_by(columns.id.desc()).limit(limit + 1)
    found = (await connection.execute(query)).all()
    views = await _views(connection, found[:limit])
    return UsagePage(views, views[-1].id if len(found) > limit else None)


def parse_request_id(text: str, field: str) -> UUID:
    """A request id out of a URL or a cursor. Raises `InvalidQuery`."""
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidQuery(f"{field}: {text!r} is no request id", field=field) from error


def parse_ids(text: str) -> list[int]:
    return [int(each) for each in text.split(",")] if text else []


async def _views(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[UsageView]:
    """Views of these rows, with one query per table however many there are. A line names its price row by id even where a
    restored catalog has lost that row."""
    if not rows:
        return []
    ids = [row.id for row in rows]
    lines: dict[UUID, list[Row[Any]]] = {}
    table = tables.usage_lines
    for line in await connection.execute(select(table).where(table.c.usage_id.in_(ids))):
        lines.setdefault(line.usage_id, []).append(line)
    tries: dict[UUID, list[Row[Any]]] = {}
    table = tables.attempts
    for attempt in await connection.execute(
        select(table).where(table.c.usage_id.in_(ids)).order_by(table.c.usage_id, table.c.sequence)
    ):
        tries.setdefault(attempt.usage_id, []).append(attempt)
    prices = await price_views(
        connection, {line.price_row_id for each in lines.values() for line in each if line.price_row_id is not None}
    )
    rates = await rate_views(connection, {rate_id for row in rows for rate_id in parse_ids(row.rate_ids)})
    terms = await terms_views(connection, {row.terms_id for row in rows if row.terms_id is not None})
    sell = await sell_views(connection, {row.sell_id for row in rows if row.sell_id is not None})
    corrected = await correction_views(connection, ids)
    found = _Found(prices, rates, terms, sell, corrected)
    return [_view(row, lines.get(row.id, []), tries.get(row.id, []), found) for row in rows]


@dataclass(frozen=True, slots=True)
class _Found:
    """What the rows of a page point to."""

    prices: dict[int, PriceView]
    rates: dict[int, RateView]
    terms: dict[int, TermsView]
    sell: dict[int, SellView]
    corrected: dict[UUID, CorrectionView]


async def price_views(connection: AsyncConnection, ids: Iterable[int]) -> dict[int, PriceView]:
    table = tables.price_rows
    columns = [table.c[name] for name in PriceRow.__dataclass_fields__]
    found = await connection.execute(select(*columns).where(table.c.id.in_(list(ids))))
    return {
        row.id: price_view(PriceRow(**{**row._mapping, "token_class": TokenClass(row.token_class)})) for row in found
    }


async def rate_views(connection: AsyncConnection, ids: Iterable[int]) -> dict[int, RateView]:
    table = tables.rate_rows
    columns = [table.c[name] for name in RateRow.__dataclass_fields__]
    found = await connection.execute(select(*columns).where(table.c.id.in_(list(ids))))
    return {row.id: rate_view(RateRow(**{**row._mapping, "kind": RateKind(row.kind)})) for row in found}


async def terms_views(connection: AsyncConnection, ids: Iterable[int]) -> dict[int, TermsView]:
    table = tables.terms_rows
    columns = [table.c[name] for name in TermsRow.__dataclass_fields__]
    found = await connection.execute(select(*columns).where(table.c.id.in_(list(ids))))
    return {row.id: terms_view(TermsRow(**row._mapping)) for row in found}


async def sell_views(connection: AsyncConnection, ids: Iterable[int]) -> dict[int, SellView]:
    table = tables.sell_rows
    columns = [table.c[name] for name in SellRow.__dataclass_fields__]
    found = await connection.execute(select(*columns).where(table.c.id.in_(list(ids))))
    return {row.id: sell_view(SellRow(**row._mapping)) for row in found}


async def correction_views(connection: AsyncConnection, ids: Iterable[UUID]) -> dict[UUID, CorrectionView]:
    """What put these rows right, by the id of the row that was wrong."""
    table = tables.corrections
    found = await connection.execute(select(table).where(table.c.original_id.in_(list(ids))))
    return {
        row.original_id: CorrectionView(
            original=str(row.original_id),
            reversal=str(row.reversal_id),
            replacement=None if row.replacement_id is None else str(row.replacement_id),
            reason=row.reason,
            actor=row.actor,
            recorded_at=format_time(row.recorded_at_us),
        )
        for row in found
    }


async def correction_chain(connection: AsyncConnection, request_id: UUID) -> list[CorrectionView]:
    """How a row was put right, and its replacement, and so on; empty for a row that stands as it was entered."""
    chain: list[CorrectionView] = []
    wanted: UUID | None = request_id
    while wanted is not None:
        found = (await correction_views(connection, [wanted])).get(wanted)
        if found is None:
            break
        chain.append(found)
        wanted = None if found.replacement is None else UUID(found.replacement)
    return chain


_CLASS_ORDER: Final = {str(token_class): at for at, token_class in enumerate(TokenClass)}


def _view(
    row: Row[Any],
    lines: list[Row[Any]],
    tries: list[Row[Any]],
    found: _Found,
) -> UsageView:
    lines = sorted(lines, key=lambda line: _CLASS_ORDER[line.token_class])
    settlement = row.settlement_currency
    tokens = {line.token_class: line.quantity for line in lines}
    tokens |= {"total_input": row.total_input, "total": row.total_input + row.total_output, "reasoning": row.reasoning}
    price_ids = dict.fromkeys(line.price_row_id for line in lines if line.price_row_id is not None)
    return UsageView(
        id=str(row.id),
        kind=row.kind,
        corrects=None if row.corrects_id is None else str(row.corrects_id),
        at=format_time(time_us_of(row.id)),
        team_id=row.team_id,
        key_id=row.key_id,
        model=row.model,
        provider=row.provider,
        provider_model=row.provider_model,
        surface=row.surface,
        status=row.status,
        estimated=row.estimated,
        streamed=row.streamed,
        tokens=tokens,
        list=MoneyView.of_nano(row.list_nano, row.list_currency),
        settled=MoneyView.of_nano(row.settled_nano, settlement),
        policy=MoneyView.of_nano(row.policy_nano, settlement),
        reference=MoneyView.of_nano(row.reference_nano, settlement),
        cost=MoneyView.of_nano(row.cost_nano, row.cost_currency),
        margin=MoneyView.of_nano(row.margin_nano, settlement),
        negative_margin=row.margin_nano is not None and row.margin_nano < 0 and row.kind != "reversal",
        saving_percent=saving_percent(row.settled_nano, row.policy_nano),
        unpriced=row.unpriced,
        flaw=row.flaw,
        lines=[_line_view(line, settlement) for line in lines],
        price_rows=[found.prices[each] for each in price_ids if each in found.prices],
        rates=[found.rates[each] for each in parse_ids(row.rate_ids) if each in found.rates],
        terms=found.terms.get(row.terms_id),
        sell=found.sell.get(row.sell_id),
        corrected_by=found.corrected.get(row.id),
        attempts=[_attempt_view(attempt) for attempt in tries],
        tags=msgspec.json.decode(row.tags, type=dict[str, str]),
        latency_ms=row.latency_us // 1000,
        ttft_ms=None if row.ttft_us is None else row.ttft_us // 1000,
        error=row.error,
    )


def _line_view(line: Row[Any], settlement: str) -> LineView:
    return LineView(
        token_class=line.token_class,
        quantity=line.quantity,
        price_row=line.price_row_id,
        list=MoneyView.of_nano(line.list_nano, line.currency),
        settled=MoneyView.of_nano(line.settled_nano, settlement),
        policy=MoneyView.of_nano(line.policy_nano, settlement),
        reference=MoneyView.of_nano(line.reference_nano, settlement),
    )


def _attempt_view(attempt: Row[Any]) -> AttemptView:
    return AttemptView(
        sequence=attempt.sequence,
        provider=attempt.provider,
        provider_model=attempt.provider_model,
        status=attempt.status,
        tokens=None if attempt.tokens is None else _counts(attempt.tokens),
        cost=MoneyView.of_nano(attempt.cost_nano, attempt.cost_currency),
        price_rows=parse_ids(attempt.price_row_ids),
        cost_per_hour=MoneyView.of_nano(attempt.hour_nano, attempt.hour_currency),
        error=attempt.error,
        started_at=format_time(attempt.started_at_us),
        latency_ms=attempt.latency_us // 1000,
        ttft_ms=None if attempt.ttft_us is None else attempt.ttft_us // 1000,
        service_tier=attempt.service_tier,
        processing=attempt.processing,
    )


def _counts(text: str) -> dict[str, int]:
    """The counts of an attempt's usage as stored (zero counts are left out); a flaw is text and is not among them."""
    stored = msgspec.json.decode(text, type=dict[str, int | str | None])
    return {name: count for name, count in stored.items() if isinstance(count, int)}
