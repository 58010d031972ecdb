"""Sums out of the rollups over stretches of time, each read in the coarsest cells that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.coarse import FINE, coarse_for, cover
from billing.coarse_tables import CURRENCIES
from billing.columns import Int64
from billing.folding import folded_until


class Sums(NamedTuple):
    """Of one span, group and combination of currencies; `sums` in the order of the columns asked for."""

    start_us: int
    group: tuple[str, ...]
    list_currency: str
    settlement_currency: str
    cost_currency: str
    sums: tuple[int, ...]


async def rollup_sums(
    connection: AsyncConnection,
    spans: Sequence[tuple[int, int]],
    columns: Sequence[str],
    *,
    groups: Sequence[str] = (),
    where: Mapping[str, str] | None = None,
    after: tuple[int | str, ...] | None = None,
    limit: int | None = None,
) -> list[Sums]:
    """In the order of spans, groups and currencies; only what has cells.

    `where` names a value for each column that must have one; `after` (a span's start and a value per group) leaves out what
    comes before and at it. Names of columns must not come from a caller.
    """
    where = where or {}
    coarse = coarse_for((*groups, *where))
    mark_us = 0 if coarse is None else await folded_until(connection)
    pieces: dict[int, list[tuple[int, int, int]]] = {}
    for start, end in spans:
        for piece in cover(() if coarse is None else coarse.spans, mark_us, start, end):
            pieces.setdefault(piece.span_us, []).append((start, piece.start_us, piece.end_us))
    parameters: dict[str, Any] = dict(where)
    names = ", ".join(("span_start", *groups, *CURRENCIES))
    branches = []
    for span_us, part in pieces.items():
        table = "rollup_traffic" if coarse is None or span_us == FINE else coarse.table.name
        conditions = [f"r.{name} = :{name}" for name in where]
        if span_us != FINE:
            conditions.append(f"r.span_us = {span_us}")
        branches.append(
            _branch(
                connection.dialect.name, table, _values(part, parameters), conditions, (*groups, *CURRENCIES), columns
            )
        )
    later = ""
    if after is not None:
        later = f"WHERE ({', '.join(('span_start', *groups))}) > ({', '.join(f':a{at}' for at in range(len(after)))})"
        parameters |= {f"a{at}": value for at, value in enumerate(after)}
    statement = f"""
        SELECT {names}, {", ".join(_sum(connection.dialect.name, name) for name in columns)}
        FROM ({" UNION ALL ".join(branches)}) AS parts {later}
        GROUP BY {names} ORDER BY {names} {"" if limit is None else f"LIMIT {limit:d}"}
    """
    numbers = (bindparam(name, type_=Int64) for name, value in parameters.items() if isinstance(value, int))
    found = await connection.execute(text(statement).bindparams(*numbers), parameters)
    at = 1 + len(groups)
    whole: Callable[[Any], tuple[int, ...]] = tuple if connection.dialect.name == "sqlite" else _integers
    return [Sums(row[0], tuple(row[1:at]), row[at], row[at + 1], row[at + 2], whole(row[at + 3 :])) for row in found]


def _integers(texts: Iterable[str]) -> tuple[int, ...]:
    return tuple(map(int, texts))


def _sum(dialect: str, name: str) -> str:
    """PostgreSQL's sums have no bound; as text they cost a fifth of what a decimal costs to read."""
    return f"SUM({name})" if dialect == "sqlite" else f"CAST(SUM({name}) AS TEXT)"


def _values(part: Sequence[tuple[int, int, int]], parameters: dict[str, Any]) -> str:
    """A table of span, first and last moment of each piece; its values go to `parameters`."""
    rows = []
    for piece in part:
        names = [f"p{len(parameters) + at}" for at in range(3)]
        parameters |= dict(zip(names, piece, strict=True))
        rows.append(f"({', '.join(f'CAST(:{name} AS BIGINT)' for name in names)})")
    return (
        "(SELECT column1 AS span_start, column2 AS first_us, column3 AS end_us "
        f"FROM (VALUES {', '.join(rows)}) AS listed) AS pieces"
    )


def _branch(
    dialect: str, table: str, values: str, conditions: list[str], groups: Sequence[str], columns: Sequence[str]
) -> str:
    """The cells of one table in its pieces. Both databases are told to look up one piece after the other: left alone, they
    compare every cell with every piece."""
    names = ", ".join(f"r.{name}" for name in (*groups, *columns))
    matching = " AND ".join((*conditions, "r.bucket_us >= pieces.first_us AND r.bucket_us < pieces.end_us"))
    if dialect == "sqlite":
        return f"SELECT span_start, {names} FROM {values} CROSS JOIN {table} AS r WHERE {matching}"
    cells = f"(SELECT {names} FROM {table} AS r WHERE {matching} OFFSET 0) AS found"
    return f"SELECT span_start, {', '.join((*groups, *columns))} FROM {values} CROSS JOIN LATERAL {cells}"
