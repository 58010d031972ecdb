"""Credit notes: an issued statement taken back whole, or money off it for chosen lines or an amount.

Whole: every line negated, and what it had stated is unstated again, so that the month may be drafted and issued anew. A part:
what was used stays stated, less of it is payable; the team's wallet is credited in the same transaction. No more is ever credited
than is left of the statement, and of each line. A whole note after parts takes these back too: all together are then nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import statement_documents as documents
from billing.checks import check_text, parse_field
from billing.currencies import minor_digits
from billing.database import bump_catalog_version
from billing.errors import Conflict, InvalidAmount, InvalidQuery
from billing.money import NANO, Money
from billing.records import MoneyView
from billing.statement_cells import stated_by
from billing.statement_documents import Balances, StatementDocument, StatementLine, nano_of
from billing.statement_tables import statements
from billing.statements import (
    CREDIT_NOTE,
    PARTIAL_CREDIT,
    STATEMENT,
    StatementRow,
    close_document,
    get_statement,
    named,
)
from billing.times import now_us
from billing.wallets import post

_USED: Final = ("usage", "prior_period")


async def credit_statement(
    connection: AsyncConnection, team_id: str, statement_id: int, *, reason: str, actor: str
) -> StatementRow:
    """Take an issued statement back whole, and with it what was credited of it before. The month may then be stated again.

    Raises `NotFound`, `Conflict`.
    """
    row = await _creditable(connection, team_id, statement_id, reason, actor)
    parts = await _parts_of(connection, row.id)
    lines = [documents.negated(line) for part in (row.document, *parts) for line in part.lines]
    document = _note(row, CREDIT_NOTE, reason, lines)
    cells = [cell.negated() for cell in await stated_by(connection, row.id)]
    note = await close_document(connection, document, cells, _values(row, CREDIT_NOTE), row.start_us, row.end_us)
    if row.credited_nano:
        await _move(connection, row, note, -row.credited_nano, "takes back the credit notes over parts", actor)
    return note


async def credit_part(
    connection: AsyncConnection,
    team_id: str,
    statement_id: int,
    *,
    reason: str,
    actor: str,
    lines: Sequence[int] = (),
    amount: str | None = None,
) -> StatementRow:
    """Credit what is left of the lines at these positions, or an amount of the statement's currency, in its minor unit.

    Raises `NotFound`; `Conflict` beyond what is left; `InvalidQuery` or `InvalidAmount` for a line or an amount that cannot be
    credited.
    """
    if bool(lines) == (amount is not None):
        raise InvalidQuery("lines: give either the positions of lines or an amount", field="lines")
    row = await _creditable(connection, team_id, statement_id, reason, actor)
    currency = row.document.currency
    left = Money(currency, nano_of(row.document.totals.payable) - row.credited_nano)
    if amount is not None:
        asked = _amount(amount, currency)
        credits = [_credit(row, 1, asked)]
    else:
        credits = await _credits_of(connection, row, lines)
        asked = Money(currency, -sum(nano_of(line.payable) for line in credits))
    over = asked.nano - left.nano
    if 0 < over <= -nano_of(row.document.totals.rounding) and amount is None:  # lines round to more than their sum does
        rest = MoneyView.of(Money(currency, over))
        credits.append(StatementLine(position=len(credits) + 1, kind="rounding", month=row.month, payable=rest))
        asked = left
    if asked.nano > left.nano or asked.nano <= 0:
        raise Conflict(
            f"{'lines' if amount is None else 'amount'}: {asked} is more than the {left} that are left of {named(row)}",
            field="lines" if amount is None else "amount",
        )
    document = _note(row, PARTIAL_CREDIT, reason, credits)
    values = {**_values(row, PARTIAL_CREDIT), "credit_nano": asked.nano}
    note = await close_document(connection, document, [], values, row.start_us, row.end_us)
    await _move(connection, row, note, asked.nano, reason, actor)
    return note


async def _creditable(
    connection: AsyncConnection, team_id: str, statement_id: int, reason: str, actor: str
) -> StatementRow:
    check_text(reason, "reason", InvalidQuery)
    check_text(actor, "actor", InvalidQuery)
    await bump_catalog_version(connection)
    row = await get_statement(connection, team_id, statement_id)
    if row.kind != STATEMENT or row.state != "issued":
        raise Conflict("id: only an issued statement can be credited", field="id")
    if row.credited_by is not None:
        raise Conflict(f"id: {named(row)} is credited already", field="id")
    return row


async def _parts_of(connection: AsyncConnection, statement_id: int) -> list[StatementDocument]:
    columns = statements.c
    query = select(columns.document).where(columns.corrects_id == statement_id, columns.kind == PARTIAL_CREDIT)
    return [documents.decode(text) for text in (await connection.execute(query.order_by(columns.id))).scalars()]


async def _credits_of(connection: AsyncConnection, row: StatementRow, positions: Sequence[int]) -> list[StatementLine]:
    """One line of credit for what is left of each chosen line."""
    before: dict[int | None, int] = {}
    for part in await _parts_of(connection, row.id):
        for line in part.lines:
            before[line.credits] = before.get(line.credits, 0) + nano_of(line.payable)
    standing = {line.position: line for line in row.document.lines}
    credits = []
    for at, position in enumerate(dict.fromkeys(positions), 1):
        chosen = standing.get(position)
        if chosen is None or chosen.kind not in _USED:
            raise InvalidQuery(f"lines: {named(row)} has no line of usage at position {position}", field="lines")
        left = Money(row.document.currency, nano_of(chosen.payable) + before.get(position, 0))
        if left.nano <= 0:
            raise Conflict(f"lines: nothing payable is left of the line at position {position}", field="lines")
        credits.append(_credit(row, at, left, chosen))
    return credits


def _credit(row: StatementRow, at: int, amount: Money, line: StatementLine | None = None) -> StatementLine:
    taken = MoneyView.of(-amount)
    return StatementLine(
        position=at,
        kind="credit",
        month=row.month if line is None else line.month,
        model=None if line is None else line.model,
        token_class=None if line is None else line.token_class,
        credits=None if line is None else line.position,
        settled=taken,
        payable=taken,
    )


def _amount(text: str, currency: str) -> Money:
    asked = Money(currency, parse_field(text, NANO, "amount"))
    if asked.nano <= 0 or asked.rounded() != asked:
        digits = minor_digits(currency)
        raise InvalidAmount(
            f"amount: {text} is no amount above zero with at most {digits} decimals ({currency})", field="amount"
        )
    return asked


def _note(row: StatementRow, kind: str, reason: str, lines: list[StatementLine]) -> StatementDocument:
    """What is payable is what the lines say, each rounded where it first stood: the documents of a statement add up."""
    numbered = [documents.placed(line, at) for at, line in enumerate(lines, 1)]
    currency = row.document.currency
    payable = MoneyView.of(Money(currency, sum(nano_of(line.payable) for line in numbered)))
    return documents.replaced(
        row.document,
        kind=kind,
        corrects=row.document.number,
        reason=reason,
        lines=numbered,
        totals=documents.totals_of(numbered, currency, payable),
        balances=Balances(),
        without_journals=[],
    )


def _values(row: StatementRow, kind: str) -> dict[str, Any]:
    return {
        "team_id": row.team_id,
        "kind": kind,
        "month": row.month,
        "start_us": row.start_us,
        "end_us": row.end_us,
        "corrects_id": row.id,
        "created_at_us": now_us(),
    }


async def _move(
    connection: AsyncConnection, row: StatementRow, note: StatementRow, nano: int, reason: str, actor: str
) -> None:
    """What the team owes less (or again), where its balance stands."""
    await post(
        connection,
        team_id=row.team_id,
        currency=row.document.currency,
        kind="adjustment",
        amount_nano=nano,
        reason=f"credit note {note.document.number}: {reason}"[:300],
        actor=actor,
    )
