"""Sums by a tag that callers gave their requests: out of the usage rows, because no rollup could hold every value of every tag.

The rows go through the very function that fills the rollups, so that the groups of a tag add up to what a report without tags
says. A request without the tag stands under the empty value.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import add
from typing import Any, Final

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.coarse_tables import CURRENCIES
from billing.errors import InvalidQuery
from billing.rollup_reads import Sums
from billing.rollups import traffic_rows
from billing.stored_rows import line_of, record_of
from billing.tables import TRAFFIC_KEY, TRAFFIC_SUMS, usage, usage_lines
from billing.times import first_id_at, time_us_of

TAG: Final = "tag:"
MOST_ROWS: Final = 100_000
_NAME: Final = re.compile(r"tag:[A-Za-z0-9_.-]{1,64}")
_CHUNK: Final = 500
_CURRENCIES_AT: Final = tuple(TRAFFIC_KEY.index(name) for name in CURRENCIES)
_tags: Final = msgspec.json.Decoder(dict[str, str])


def is_tag(group: str) -> bool:
    """Whether a group's name is `tag:` and a tag's name."""
    return _NAME.fullmatch(group) is not None


async def tag_sums(
    connection: AsyncConnection,
    spans: Sequence[tuple[int, int]],
    columns: Sequence[str],
    *,
    groups: Sequence[str],
    where: Mapping[str, str],
    after: tuple[int | str, ...] | None,
) -> list[Sums]:
    """As `rollup_sums` has them. Raises `InvalidQuery` for more than 100,000 rows."""
    starts = [start for start, _ in spans]
    sums_at = [len(TRAFFIC_KEY) + TRAFFIC_SUMS.index(name) for name in columns]
    cells: dict[tuple[Any, ...], list[int]] = {}
    ids = usage.c
    within = [ids.id < first_id_at(spans[-1][1])]
    within += [ids[name] == value for name, value in where.items()]
    seen, behind = 0, ids.id >= first_id_at(spans[0][0])
    while True:
        query = select(usage).where(*within, behind).order_by(ids.id).limit(_CHUNK)
        rows = (await connection.execute(query)).all()
        if not rows:
            break
        seen, behind = seen + len(rows), ids.id > rows[-1].id
        if seen > MOST_ROWS:
            raise InvalidQuery(
                f"end: more than {MOST_ROWS} requests to group by a tag; ask for a shorter range, or for one team or key",
                field="end",
            )
        for row, lines in await _with_lines(connection, rows):
            start = starts[bisect_right(starts, time_us_of(row.id)) - 1]
            (found,) = traffic_rows([record_of(row, tuple(map(line_of, lines)))])
            key = (start, *_groups(row, groups), *(found[at] for at in _CURRENCIES_AT))
            added = [found[at] for at in sums_at]
            cells[key] = list(map(add, cells[key], added)) if key in cells else added
        await asyncio.sleep(0)
    keys = sorted(cells)
    if after is not None:
        keys = [key for key in keys if key[: len(after)] > after]
    return [Sums(key[0], key[1:-3], key[-3], key[-2], key[-1], tuple(cells[key])) for key in keys]


async def _with_lines(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[tuple[Row[Any], list[Row[Any]]]]:
    query = select(usage_lines).where(usage_lines.c.usage_id.in_([row.id for row in rows]))
    lines: dict[Any, list[Row[Any]]] = {}
    for line in await connection.execute(query):
        lines.setdefault(line.usage_id, []).append(line)
    return [(row, lines.get(row.id, [])) for row in rows]


def _groups(row: Row[Any], groups: Sequence[str]) -> list[str]:
    tags = _tags.decode(row.tags)
    return [
        tags.get(name.removeprefix(TAG), "") if name.startswith(TAG) else getattr(row, name) or "" for name in groups
    ]
