"""What a month holds and no statement has said yet: the rollups of a team's months less the cells of its issued documents.

One rule for all lines: for every month up to the stated one, what the rollups hold minus what was stated. For the month itself
that is the statement; for an earlier one it is what arrived after its statement was issued: prior-period lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, case, func, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.errors import AmountOverflow
from billing.money import BEYOND, INT64_MAX
from billing.statement_tables import CELL_KEY, statement_cells, statements
from billing.tables import MONEY_SUMS, rollup_money
from billing.usage import TokenClass

ROLLUP_KEY: Final = CELL_KEY[2:]
"""What of a cell's key stands in `rollup_money`."""
_ROWS_PER_INSERT: Final = 500


class CellKey(NamedTuple):
    """What all requests of a cell share: the month they belong to, route, class, price, terms and rates. 0 and '': none."""

    source_start_us: int
    model: str
    provider: str
    provider_model: str
    token_class: str
    price_row_id: int
    terms_id: int
    sell_id: int
    rate_ids: str
    list_currency: str
    settlement_currency: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Sums over `lines` lines of one key. An amount is None where the key has none (no price, no rate)."""

    key: CellKey
    lines: int
    quantity: int
    list_nano: int | None
    settled_nano: int | None
    policy_nano: int | None
    reference_nano: int | None

    @property
    def empty(self) -> bool:
        return not any(
            (self.lines, self.quantity, self.list_nano, self.settled_nano, self.policy_nano, self.reference_nano)
        )

    @property
    def sums(self) -> tuple[int, int, int | None, int | None, int | None, int | None]:
        return (self.lines, self.quantity, self.list_nano, self.settled_nano, self.policy_nano, self.reference_nano)

    def minus(self, other: Cell) -> Cell:
        return Cell(self.key, *map(_minus, self.sums, other.sums))  # type: ignore[arg-type]

    def negated(self) -> Cell:
        return Cell(self.key, *(None if value is None else -value for value in self.sums))  # type: ignore[arg-type]


def _minus(left: int | None, right: int | None) -> int | None:
    return None if left is None else left - (right or 0)


async def unstated_cells(connection: AsyncConnection, team_id: str, months: Sequence[tuple[int, int]]) -> list[Cell]:
    """What the rollups hold of these months (start inside, end outside, in order) and no issued document has stated."""
    held = await _held(connection, team_id, months)
    stated = await _stated(connection, team_id, [start for start, _ in months])
    found: list[Cell] = []
    for key in held.keys() | stated.keys():
        here, there = held.get(key), stated.get(key)
        if here is None:
            assert there is not None
            left = there.negated()
        else:
            left = here if there is None else here.minus(there)
        if not left.empty:
            found.append(left)
    return sorted(found, key=lambda cell: (*_in_order(cell.key), cell.key))


def _in_order(key: CellKey) -> tuple[int, str, int]:
    return (-key.source_start_us, key.model, _CLASS_ORDER[key.token_class])


_CLASS_ORDER: Final = {str(token_class): at for at, token_class in enumerate(TokenClass)}


async def _held(connection: AsyncConnection, team_id: str, months: Sequence[tuple[int, int]]) -> Mapping[CellKey, Cell]:
    """One scan over the team's rollups from the first month to the last."""
    table = rollup_money
    month = case(
        *((and_(table.c.bucket_us >= start, table.c.bucket_us < end), start) for start, end in months), else_=None
    ).label("source_start_us")
    keys = [table.c[name] for name in ROLLUP_KEY]
    query = (
        select(month, *keys, *(func.sum(table.c[name]).label(name) for name in MONEY_SUMS))
        .where(table.c.team_id == team_id, table.c.bucket_us >= months[0][0], table.c.bucket_us < months[-1][1])
        .group_by(month, *keys)
    )
    try:
        rows = (await connection.execute(query)).all()
    except DBAPIError as error:
        if "integer overflow" in str(error.orig):
            raise AmountOverflow(f"a sum of the month is {BEYOND}") from error
        raise
    return {cell.key: cell for cell in map(cell_of, rows) if cell is not None}


async def _stated(connection: AsyncConnection, team_id: str, starts: Sequence[int]) -> Mapping[CellKey, Cell]:
    cells, document = statement_cells, statements
    keys = [cells.c.source_start_us, *(cells.c[name] for name in ROLLUP_KEY)]
    query = (
        select(*keys, *(func.sum(cells.c[name]).label(name) for name in MONEY_SUMS))
        .join(document, document.c.id == cells.c.statement_id)
        .where(document.c.team_id == team_id, document.c.state == "issued", cells.c.source_start_us.in_(starts))
        .group_by(*keys)
    )
    return {cell.key: cell for cell in map(cell_of, await connection.execute(query)) if cell is not None}


def cell_of(row: Any) -> Cell | None:
    """A row with the columns of a cell's key and sums. Raises `AmountOverflow`."""
    if row.source_start_us is None:
        return None
    key = CellKey(row.source_start_us, *(getattr(row, name) for name in ROLLUP_KEY))
    for name in MONEY_SUMS:
        if abs(getattr(row, name) or 0) > INT64_MAX:
            raise AmountOverflow(f"{name}: the month's sum for {key.model} {key.token_class} is {BEYOND}")
    return Cell(key, *(None if value is None else int(value) for value in (getattr(row, n) for n in MONEY_SUMS)))  # type: ignore[arg-type]


async def stated_by(connection: AsyncConnection, statement_id: int) -> list[Cell]:
    """The cells of one issued document, in the order of its lines."""
    query = select(statement_cells).where(statement_cells.c.statement_id == statement_id)
    cells = [cell for cell in map(cell_of, await connection.execute(query)) if cell is not None]
    return sorted(cells, key=lambda cell: (*_in_order(cell.key), cell.key))


async def store_cells(connection: AsyncConnection, statement_id: int, cells: Iterable[Cell]) -> None:
    """Raises `AmountOverflow` for a sum that 64 bits cannot hold: nothing is wrapped, nothing is stored."""
    rows = []
    for cell in cells:
        if any(value is not None and abs(value) > INT64_MAX for value in cell.sums):
            raise AmountOverflow(f"a sum of {cell.key.model} {cell.key.token_class} is {BEYOND}; nothing was issued")
        sums = dict(zip(MONEY_SUMS, cell.sums, strict=True))
        rows.append({"statement_id": statement_id, **cell.key._asdict(), **sums})
    for start in range(0, len(rows), _ROWS_PER_INSERT):
        await connection.execute(insert(statement_cells), rows[start : start + _ROWS_PER_INSERT])
