"""Rating a past range again with the books as they are now: looked at first, then entered as corrections, row by row linked.

`look` reads and answers with a table of differences and the name of what it saw: a hash over the range, the books and every row
that would change. What is entered is exactly that: where rows or books have changed since, another look is wanted.
Requests count at the moment they were made; those that were put right before, as they were put right.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.books import Books
from billing.checks import check_text
from billing.corrections import correct_all
from billing.differences import Difference, Group
from billing.errors import Conflict, InvalidCorrection, InvalidQuery
from billing.records import UsageRecord
from billing.rerating import figures, loses_its_amount, rated_again, stored
from billing.tables import attempts, corrections, usage, usage_lines
from billing.times import DAY_US, first_id_at, now_us, time_us_of

MOST_REQUESTS: Final = 20_000
"""So many are looked at; ask for less at a time."""
MOST_CHANGES: Final = 5_000
"""So many are put right at a time."""
MAX_RANGE_US: Final = 92 * DAY_US
_CHUNK: Final = 250


@dataclass(frozen=True, slots=True)
class RerateRange:
    """Requests made from `start_us` (inside) to `end_us` (outside); None: of every team, model, provider."""

    start_us: int
    end_us: int
    team_id: str | None = None
    model: str | None = None
    provider: str | None = None


class Rerating(msgspec.Struct, frozen=True):
    """`plan` names what was seen. `data` is about the rows that change; `unchanged` cost the same, and `without_price` would lose
    their amount and stay as they are."""

    plan: str
    requests: int
    changed: int
    unchanged: int
    without_price: int
    data: tuple[Difference, ...]


@dataclass(slots=True)
class _Found:
    requests: int = 0
    unchanged: int = 0
    without_price: int = 0
    changes: list[tuple[UUID, int]] = field(default_factory=list)
    """The row that stands, and the moment of its request."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    digest: Any = field(default_factory=hashlib.sha256)


async def look(
    connection: AsyncConnection, asked: RerateRange, books: Books, price_list_of: Callable[[str], str]
) -> Rerating:
    """What would change. Nothing is written. Raises `InvalidQuery` for a range that is too long or holds too much."""
    return _view(await _look(connection, asked, books, price_list_of))


async def planned(
    connection: AsyncConnection, asked: RerateRange, books: Books, price_list_of: Callable[[str], str], plan: str
) -> list[tuple[UUID, int]]:
    """The rows of a plan that was looked at before, each with the moment of its request, for `apply_rerating`.

    Raises `Conflict` where rows or books have changed since, `InvalidCorrection` where there is nothing or too much to change.
    """
    found = await _look(connection, asked, books, price_list_of)
    if _view(found).plan != plan:
        raise Conflict("plan: rows or books have changed since; look again", field="plan")
    if not found.changes:
        raise InvalidCorrection("plan: rated with today's books nothing would change", field="plan")
    if len(found.changes) > MOST_CHANGES:
        raise InvalidCorrection(
            f"plan: {len(found.changes)} requests would change, more than {MOST_CHANGES}; ask for less at a time",
            field="plan",
        )
    return found.changes


async def apply_rerating(
    connection: AsyncConnection,
    changes: Sequence[tuple[UUID, int]],
    books: Books,
    price_list_of: Callable[[str], str],
    new_id: Callable[[], UUID],
    *,
    reason: str,
    actor: str,
) -> int:
    """Enter the corrections of these rows; how many. What somebody else has put right meanwhile stays as they left it."""
    check_text(reason, "reason", InvalidCorrection)
    check_text(actor, "actor", InvalidCorrection)
    moments = dict(changes)
    done = 0
    for start in range(0, len(changes), _CHUNK):
        ids = [row_id for row_id, _ in changes[start : start + _CHUNK]]
        rows = (await connection.execute(select(usage).where(usage.c.id.in_(ids)).order_by(usage.c.id))).all()
        truths = await _again(connection, [(row, moments[row.id]) for row in rows], books, price_list_of)
        entries = [(truth, new_id(), new_id()) for _, truth in truths]
        done += await correct_all(connection, entries, reason=reason, actor=actor)
    return done


async def _look(
    connection: AsyncConnection, asked: RerateRange, books: Books, price_list_of: Callable[[str], str]
) -> _Found:
    if not 0 < asked.end_us - asked.start_us <= MAX_RANGE_US:
        raise InvalidQuery("end: rating again covers up to 92 days, and its end lies after its start", field="end")
    if asked.end_us > now_us():
        raise InvalidQuery("end: lies in the future; rows of the range may still come", field="end")
    found = _Found()
    found.digest.update(repr((asked, books.pins())).encode())
    async for chunk in _standing(connection, asked):
        found.requests += len(chunk)
        if found.requests > MOST_REQUESTS:
            raise InvalidQuery(f"end: more than {MOST_REQUESTS} requests; ask for less at a time", field="end")
        for (row, at_us), truth in await _again(connection, chunk, books, price_list_of):
            new = figures(truth.rated)
            if loses_its_amount(row, truth.rated):
                found.without_price += 1
            elif new == stored(row):
                found.unchanged += 1
            else:
                found.changes.append((row.id, at_us))
                found.groups.setdefault((row.team_id, row.model), Group()).add(row, truth.rated)
                found.digest.update(repr((row.id, new)).encode())
        await asyncio.sleep(0)
    return found


def _view(found: _Found) -> Rerating:
    return Rerating(
        plan=found.digest.hexdigest()[:32],
        requests=found.requests,
        changed=len(found.changes),
        unchanged=found.unchanged,
        without_price=found.without_price,
        data=tuple(group.difference(*key) for key, group in sorted(found.groups.items())),
    )


async def _standing(connection: AsyncConnection, asked: RerateRange) -> AsyncIterator[list[tuple[Row[Any], int]]]:
    """The rows that stand for the requests of the range, with the moments of these: what was taken back is left out."""
    columns = usage.c
    where = [columns.id < first_id_at(asked.end_us), columns.kind == "usage"]
    for name in ("team_id", "model", "provider"):
        if getattr(asked, name) is not None:
            where.append(columns[name] == getattr(asked, name))
    after, inclusive = first_id_at(asked.start_us), True
    while True:
        behind = columns.id >= after if inclusive else columns.id > after
        query = select(usage).where(behind, *where).order_by(columns.id).limit(_CHUNK)
        rows = (await connection.execute(query)).all()
        if not rows:
            return
        after, inclusive = rows[-1].id, False
        yield await _as_put_right(connection, rows)


async def _as_put_right(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[tuple[Row[Any], int]]:
    moments = {row.id: time_us_of(row.id) for row in rows}
    standing = {row.id: row for row in rows}
    pending = list(standing)
    done = corrections.c
    while pending:
        links = (await connection.execute(select(corrections).where(done.original_id.in_(pending)))).all()
        pending = [link.replacement_id for link in links if link.replacement_id is not None]
        for link in links:
            del standing[link.original_id]
            if link.replacement_id is not None:
                moments[link.replacement_id] = moments[link.original_id]
        if pending:
            for row in await connection.execute(select(usage).where(usage.c.id.in_(pending))):
                standing[row.id] = row
    return [(row, moments[row.id]) for row in sorted(standing.values(), key=lambda row: row.id.int)]


async def _again(
    connection: AsyncConnection,
    rows: Sequence[tuple[Row[Any], int]],
    books: Books,
    price_list_of: Callable[[str], str],
) -> list[tuple[tuple[Row[Any], int], UsageRecord]]:
    ids = [row.id for row, _ in rows]
    lines: dict[UUID, list[Row[Any]]] = {}
    for line in await connection.execute(select(usage_lines).where(usage_lines.c.usage_id.in_(ids))):
        lines.setdefault(line.usage_id, []).append(line)
    tries: dict[UUID, list[Row[Any]]] = {}
    query = select(attempts).where(attempts.c.usage_id.in_(ids)).order_by(attempts.c.sequence)
    for attempt in await connection.execute(query):
        tries.setdefault(attempt.usage_id, []).append(attempt)
    return [
        ((row, at_us), rated_again(row, lines.get(row.id, ()), tries.get(row.id, ()), books, at_us, price_list_of))
        for row, at_us in rows
    ]
