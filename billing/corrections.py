"""Putting a usage row right without touching it: a reversal that takes it back to the last nano, and a new row, both linked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Row, and_, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.books import Pins
from billing.errors import Conflict, NotFound
from billing.ledger import record
from billing.money import Money
from billing.rating import Rated, RatedLine
from billing.reads import parse_ids
from billing.records import UsageRecord
from billing.times import now_us
from billing.usage import TokenClass, Usage

_IDS_PER_QUERY: Final = 500
THE_RECORDER: Final = "recorder"
OUTCOME_TURNED_UP: Final = "the outcome of a lost attempt turned up"


async def lost_among(connection: AsyncConnection, ids: Sequence[UUID]) -> list[UUID]:
    """Which of these requests stand in the books as `lost` and have not been put right yet."""
    rows, done = tables.usage.c, tables.corrections.c
    return await _among(connection, ids, and_(rows.status == "lost", done.original_id.is_(None)))


async def settled_among(connection: AsyncConnection, ids: Sequence[UUID]) -> list[UUID]:
    """Which of these requests stand in the books with their outcome, or were put right already."""
    rows, done = tables.usage.c, tables.corrections.c
    return await _among(connection, ids, or_(rows.status != "lost", done.original_id.is_not(None)))


async def _among(connection: AsyncConnection, ids: Sequence[UUID], which: ColumnElement[bool]) -> list[UUID]:
    found: list[UUID] = []
    rows, done = tables.usage.c, tables.corrections.c
    for start in range(0, len(ids), _IDS_PER_QUERY):
        query = (
            select(rows.id)
            .outerjoin(tables.corrections, done.original_id == rows.id)
            .where(rows.id.in_(ids[start : start + _IDS_PER_QUERY]), which)
        )
        found.extend((await connection.execute(query)).scalars())
    return found


async def correct(
    connection: AsyncConnection,
    truth: UsageRecord,
    ids: tuple[UUID, UUID],
    *,
    reason: str = OUTCOME_TURNED_UP,
    actor: str = THE_RECORDER,
) -> bool:
    """Reverse the row `truth.id` under the first of `ids` and enter `truth` as a correction under the second.

    Both stand at their own ids' time, so an issued statement never moves. False when the row has been put right already: the
    first correction wins and a replay changes nothing. Raises `NotFound` when there is no such row.
    """
    reversal_id, correction_id = ids
    original = await _row(connection, truth.id)
    if not await _claim(connection, [(truth.id, reversal_id, correction_id)], reason, actor):
        return False
    lines = await _lines_of(connection, [truth.id])
    replacement = replace(truth, id=correction_id, kind="correction", corrects_id=truth.id)
    await _enter(connection, [_reversal(original, lines.get(truth.id, []), reversal_id), replacement])
    return True


async def correct_all(
    connection: AsyncConnection, truths: Sequence[tuple[UsageRecord, UUID, UUID]], *, reason: str, actor: str
) -> int:
    """`correct` for up to 500 rows in one batch, each with its two ids; how many nobody had put right before."""
    assert len(truths) <= _IDS_PER_QUERY
    ids = {truth.id: (reversal_id, correction_id) for truth, reversal_id, correction_id in truths}
    rows = tables.usage
    found = await connection.execute(select(rows).where(rows.c.id.in_(list(ids)), rows.c.kind != "reversal"))
    originals = {row.id: row for row in found}
    claims = [(each, *ids[each]) for each in originals]
    mine = await _claim(connection, claims, reason, actor)
    lines = await _lines_of(connection, mine)
    entered: list[UsageRecord] = []
    for truth, reversal_id, correction_id in truths:
        if truth.id in mine:
            entered.append(_reversal(originals[truth.id], lines.get(truth.id, []), reversal_id))
            entered.append(replace(truth, id=correction_id, kind="correction", corrects_id=truth.id))
    await _enter(connection, entered)
    return len(mine)


async def reverse(
    connection: AsyncConnection, original_id: UUID, reversal_id: UUID, *, reason: str, actor: str
) -> bool:
    """Take a row back without a replacement. False when it has been put right already. Raises `NotFound`."""
    original = await _row(connection, original_id)
    if not await _claim(connection, [(original_id, reversal_id, None)], reason, actor):
        return False
    lines = await _lines_of(connection, [original_id])
    await _enter(connection, [_reversal(original, lines.get(original_id, []), reversal_id)])
    return True


async def correctable(connection: AsyncConnection, request_id: UUID) -> Row[Any]:
    """The usage row, which nobody has put right yet. Raises `NotFound`, and `Conflict` that names the row to correct instead."""
    row = await _row(connection, request_id)
    table = tables.corrections
    done = (await connection.execute(select(table).where(table.c.original_id == request_id))).one_or_none()
    if done is not None:
        instead = "" if done.replacement_id is None else f"; correct its replacement {done.replacement_id}"
        raise Conflict(f"{request_id} was put right already, by {done.reversal_id}{instead}", field="id")
    return row


async def _row(connection: AsyncConnection, request_id: UUID) -> Row[Any]:
    row = (await connection.execute(select(tables.usage).where(tables.usage.c.id == request_id))).one_or_none()
    if row is None:
        raise NotFound(f"no usage row {request_id}", field="id")
    if row.kind == "reversal":
        raise Conflict(f"{request_id} is a reversal; correct the row it belongs to", field="id")
    return row


async def _claim(
    connection: AsyncConnection, claims: Sequence[tuple[UUID, UUID, UUID | None]], reason: str, actor: str
) -> set[UUID]:
    """One conditional insert decides who corrects a row, on one process or on many: the originals that are ours.

    A claim names the original, its reversal and its replacement.
    """
    if not claims:
        return set()
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    table, at_us = tables.corrections, now_us()
    values = [
        {
            "original_id": original,
            "reversal_id": reversal,
            "replacement_id": replacement,
            "reason": reason,
            "actor": actor,
            "recorded_at_us": at_us,
        }
        for original, reversal, replacement in sorted(claims, key=lambda claim: claim[0].int)
    ]
    statement = dialect.insert(table).values(values).on_conflict_do_nothing().returning(table.c.original_id)
    return set((await connection.execute(statement)).scalars())


async def _lines_of(connection: AsyncConnection, ids: Iterable[UUID]) -> dict[UUID, list[Row[Any]]]:
    table = tables.usage_lines
    lines: dict[UUID, list[Row[Any]]] = {}
    for line in await connection.execute(select(table).where(table.c.usage_id.in_(list(ids)))):
        lines.setdefault(line.usage_id, []).append(line)
    return lines


async def _enter(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    result = await record(connection, records)
    if result.duplicates:
        raise Conflict("the ids of a correction must be new", field="id")


def _reversal(row: Row[Any], stored: Iterable[Row[Any]], reversal_id: UUID) -> UsageRecord:
    """The row with every count and amount negated. Its attempts stay with the original; their cost is taken back in the sum."""
    lines = tuple(
        RatedLine(
            TokenClass(line.token_class),
            -line.quantity,
            line.price_row_id,
            line.currency,
            _minus(line.list_nano),
            _minus(line.settled_nano),
            _minus(line.policy_nano),
            _minus(line.reference_nano),
        )
        for line in stored
    )
    counts = {str(line.token_class): line.quantity for line in lines}
    usage = Usage(**counts, reasoning=-row.reasoning, compute_us=-row.compute_us, flaw=row.flaw)
    rated = Rated(
        lines=lines,
        list=_negated(row.list_currency, row.list_nano),
        settled=_negated(row.settlement_currency, row.settled_nano),
        policy=_negated(row.settlement_currency, row.policy_nano),
        reference=_negated(row.settlement_currency, row.reference_nano),
        cost=_negated(row.cost_currency, row.cost_nano),
        price_row_ids=tuple(line.price_row_id for line in lines if line.price_row_id is not None),
        rate_ids=tuple(parse_ids(row.rate_ids)),
        terms_id=row.terms_id,
        attempts=(),
        unpriced=row.unpriced,
        sell_id=row.sell_id,
        margin=_negated(row.settlement_currency, row.margin_nano),
    )
    return UsageRecord(
        id=reversal_id,
        team_id=row.team_id,
        key_id=row.key_id,
        model=row.model,
        provider=row.provider,
        provider_model=row.provider_model,
        surface=row.surface,
        status=row.status,
        estimated=row.estimated,
        streamed=row.streamed,
        usage=usage,
        rated=rated,
        attempts=(),
        tags=msgspec.json.decode(row.tags, type=dict[str, str]),
        latency_us=row.latency_us,
        ttft_us=row.ttft_us,
        error=row.error,
        pins=Pins(row.pin_book, row.pin_rates, row.pin_terms, row.pin_sell),
        settlement_currency=row.settlement_currency,
        kind="reversal",
        corrects_id=row.id,
    )


def _minus(nano: int | None) -> int | None:
    return None if nano is None else -nano


def _negated(currency: str | None, nano: int | None) -> Money | None:
    return None if nano is None or currency is None else Money(currency, -nano)
