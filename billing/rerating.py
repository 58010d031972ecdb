"""Rating a request again with the books as they are now, at the request's own time: a price, rate or term was recorded wrong.

Nothing is edited: `corrections.correct` reverses the row and enters the new figures beside it, both linked, in the period of
their own ids. What was used stays what it was; only what it costs is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.books import Books, load_books
from billing.corrections import correct, correctable
from billing.errors import Conflict, InvalidCorrection
from billing.money import Money
from billing.rating import AttemptUsage, Payer, Rated, rate
from billing.reads import parse_ids
from billing.records import AttemptRecord, UsageRecord
from billing.times import time_us_of
from billing.usage import TokenClass, Usage


async def rerate(
    connection: AsyncConnection,
    request_id: UUID,
    ids: tuple[UUID, UUID],
    *,
    reason: str,
    actor: str,
    price_list_of: Callable[[str], str],
) -> None:
    """Replace the row by one rated with today's books, under the two new `ids` (reversal, replacement).

    `price_list_of` names a provider's price list, for attempts that had no price. Raises `NotFound`; `Conflict` for a reversal or
    a row that was put right before; `InvalidCorrection` where nothing would change or the new row would have no price.
    """
    row = await correctable(connection, request_id)
    books = await load_books(connection)
    lines_table, tries_table = tables.usage_lines, tables.attempts
    lines = (await connection.execute(select(lines_table).where(lines_table.c.usage_id == row.id))).all()
    of_row = select(tries_table).where(tries_table.c.usage_id == row.id).order_by(tries_table.c.sequence)
    tries = (await connection.execute(of_row)).all()
    truth = rated_again(row, lines, tries, books, await _time_us(connection, row), price_list_of)
    if loses_its_amount(row, truth.rated):
        raise InvalidCorrection(
            f"id: rated again it would have no amount ({truth.rated.unpriced}); reverse it, or mend the books first",
            field="id",
        )
    if figures(truth.rated) == stored(row):
        raise InvalidCorrection(
            "id: rated with today's books it costs the same; there is nothing to correct", field="id"
        )
    if not await correct(connection, truth, ids, reason=reason, actor=actor):
        raise Conflict("id: it was put right at the same moment by somebody else", field="id")


def rated_again(
    row: Row[Any],
    lines: Sequence[Row[Any]],
    tries: Sequence[Row[Any]],
    books: Books,
    at_us: int,
    price_list_of: Callable[[str], str],
) -> UsageRecord:
    """The row as these books have it, at the moment of its request; its lines and attempts say what was used."""
    pins = books.pins()
    attempts = [_attempt_usage(each, books, price_list_of) for each in tries]
    charged = _charged(row, lines, attempts, books, price_list_of)
    rated = rate(
        books,
        pins,
        at_us=at_us,
        payer=Payer(row.team_id, row.settlement_currency),
        charged=charged,
        attempts=attempts,
    )
    costs = {each.sequence: each for each in rated.attempts}
    return UsageRecord(
        id=row.id,
        team_id=row.team_id,
        key_id=row.key_id,
        model=row.model,
        provider=row.provider,
        provider_model=row.provider_model,
        surface=row.surface,
        status=row.status,
        estimated=row.estimated,
        streamed=row.streamed,
        usage=Usage() if charged is None else charged.usage,
        rated=rated,
        attempts=tuple(
            AttemptRecord(
                sequence=each.sequence,
                provider=each.provider,
                provider_model=each.provider_model,
                status=each.status,
                usage=None if each.tokens is None else usage.usage,
                cost=costs[each.sequence].cost,
                price_row_ids=costs[each.sequence].price_row_ids,
                error=each.error,
                started_at_us=each.started_at_us,
                latency_us=each.latency_us,
                ttft_us=each.ttft_us,
                service_tier=each.service_tier,
                processing=each.processing,
                cost_per_hour=costs[each.sequence].cost_per_hour,
            )
            for each, usage in zip(tries, attempts, strict=True)
        ),
        tags=msgspec.json.decode(row.tags, type=dict[str, str]),
        latency_us=row.latency_us,
        ttft_us=row.ttft_us,
        error=row.error,
        pins=pins,
        settlement_currency=row.settlement_currency,
    )


async def _time_us(connection: AsyncConnection, row: Row[Any]) -> int:
    """When the request was made: a correction stands under a later id than the row it replaced."""
    request_id, corrects = row.id, row.corrects_id
    while corrects is not None:
        request_id = corrects
        corrects = await connection.scalar(select(tables.usage.c.corrects_id).where(tables.usage.c.id == request_id))
    return time_us_of(request_id)


def _attempt_usage(attempt: Row[Any], books: Books, price_list_of: Callable[[str], str]) -> AttemptUsage:
    return AttemptUsage(
        sequence=attempt.sequence,
        price_list=_price_list(books, parse_ids(attempt.price_row_ids)) or price_list_of(attempt.provider),
        model=attempt.provider_model,
        provider=attempt.provider,
        usage=Usage() if attempt.tokens is None else msgspec.json.decode(attempt.tokens, type=Usage),
        service_tier=attempt.service_tier,
        processing=attempt.processing,
        cost_per_hour=hourly(attempt),
    )


def hourly(attempt: Row[Any]) -> Money | None:
    """What an hour of the engine cost when the attempt was made: not in any book, so it stays what it was."""
    return None if attempt.hour_currency is None else Money(attempt.hour_currency, attempt.hour_nano)


def _charged(
    row: Row[Any],
    lines: Sequence[Row[Any]],
    attempts: Sequence[AttemptUsage],
    books: Books,
    price_list_of: Callable[[str], str],
) -> AttemptUsage | None:
    """What the team was charged for: the quantities of its lines, on the route that answered. None: it was charged nothing."""
    if not lines:
        return None
    usage = _usage_of(row, lines, books)
    serving = [each for each in attempts if (each.provider, each.model) == (row.provider, row.provider_model)]
    if not serving:
        return AttemptUsage(
            1, price_list_of(row.provider or ""), row.provider_model or row.model, row.provider or "", usage
        )
    same = next((each for each in reversed(serving) if each.usage.lines() == usage.lines()), None)
    return same or msgspec.structs.replace(serving[-1], usage=usage)


def _usage_of(row: Row[Any], lines: Sequence[Row[Any]], books: Books) -> Usage:
    counts = {line.token_class: line.quantity for line in lines}
    fee = next((line for line in lines if line.token_class == TokenClass.REQUEST), None)
    if fee is not None and fee.price_row_id is not None:
        priced = books.prices.by_id(fee.price_row_id)
        if priced is not None and priced.unit == "hour":  # its quantity is engine time, kept in the row itself
            del counts[TokenClass.REQUEST]
    return Usage(**counts, reasoning=row.reasoning, compute_us=row.compute_us, flaw=row.flaw)


def _price_list(books: Books, price_row_ids: Iterable[int]) -> str | None:
    for row_id in price_row_ids:
        row = books.prices.by_id(row_id)
        if row is not None:
            return row.price_list
    return None


def loses_its_amount(row: Row[Any], rated: Rated) -> bool:
    """A row that has an amount is not put right into one that has none."""
    return rated.unpriced is not None and row.settled_nano is not None


def figures(rated: Rated) -> tuple[object, ...]:
    """What a correction would be about: as `stored` has it of a row."""
    listed, cost, margin = rated.list, rated.cost, rated.margin
    return (
        None if listed is None else (listed.nano, listed.currency),
        *(None if each is None else each.nano for each in (rated.settled, rated.policy, rated.reference)),
        None if cost is None else (cost.nano, cost.currency),
        None if margin is None else margin.nano,
    )


def stored(row: Row[Any]) -> tuple[object, ...]:
    """The figures that stand."""
    return (
        None if row.list_nano is None else (row.list_nano, row.list_currency),
        row.settled_nano,
        row.policy_nano,
        row.reference_nano,
        None if row.cost_nano is None else (row.cost_nano, row.cost_currency),
        row.margin_nano,
    )
