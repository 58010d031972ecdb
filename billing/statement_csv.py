"""A statement as one CSV table, a line a row. The payable column sums to the statement's payable amount."""

from __future__ import annotations

from typing import Final

from billing.csv_text import write_csv
from billing.records import MoneyView
from billing.statement_documents import StatementDocument, StatementLine, lacking

HEADER: Final = (
    "statement",
    "team_id",
    "team_name",
    "statement_month",
    "position",
    "kind",
    "month",
    "model",
    "token_class",
    "requests",
    "quantity",
    "unit",
    "unit_price",
    "list_currency",
    "list",
    "currency",
    "policy",
    "reference",
    "settled",
    "saving",
    "saving_percent",
    "payable",
    "unpriced",
    "without",
    "credits_line",
    "price_row",
    "terms",
    "rates",
)


def statement_csv(document: StatementDocument) -> str:
    return write_csv(HEADER, [_row(document, line) for line in document.lines])


def _row(document: StatementDocument, line: StatementLine) -> tuple[object, ...]:
    return (
        document.number or "draft",
        document.team_id,
        document.team_name,
        document.month,
        line.position,
        line.kind,
        line.month,
        line.model,
        line.token_class,
        line.requests,
        line.quantity,
        line.unit,
        _amount(line.unit_price),
        None if line.list is None else line.list.currency,
        _amount(line.list),
        document.currency,
        _amount(line.policy),
        _amount(line.reference),
        _amount(line.settled),
        _amount(line.saving),
        line.saving_percent,
        _amount(line.payable),
        "yes" if line.unpriced else "no",
        " ".join(lacking(line)),
        line.credits,
        line.price_row,
        " ".join(map(str, line.terms)),
        " ".join(map(str, line.rates)),
    )


def _amount(view: MoneyView | None) -> str | None:
    return None if view is None else view.amount
