"""A statement as a page to print: one table, no script, no address outside itself."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from billing.money import Money
from billing.records import MoneyView
from billing.statement_documents import StatementDocument
from billing.statements import StatementRow

STYLE: Final = """
@page { size: A4 landscape; margin: 14mm; }
body { font: 13px/1.45 system-ui, sans-serif; color: #111; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 0 1.5rem; }
dt { color: #666; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .5rem; border-bottom: 1px solid #ddd; }
thead th { border-bottom: 2px solid #111; } tfoot th, tfoot td { border-top: 2px solid #111; border-bottom: 0; }
tr { break-inside: avoid; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.total { font-weight: 700; }
.id { font-family: ui-monospace, monospace; color: #666; overflow-wrap: anywhere; }
.prior_period td, .credit td, .rounding td { color: #555; }
.balances { width: auto; min-width: 26rem; }
small, footer { color: #666; }
"""
_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_HEADINGS: Final = {
    "statement": "Statement",
    "credit_note": "Credit note",
    "partial_credit_note": "Credit note over a part",
}
_UNITS: Final = {
    "mtok": "million",
    "request": "request",
    "second": "second",
    "image": "image",
    "hour": "hour",
}


def statement_page(row: StatementRow) -> str:
    """The HTML; every value in it is escaped."""
    document = row.document
    heading = _HEADINGS[row.kind]
    return _template().render(
        title=f"{heading} {document.number or 'draft'} {document.month}",
        heading=heading,
        document=document,
        hash=row.hash,
        credited=Money(document.currency, row.credited_nano) if row.credited_nano else None,
        style=STYLE,
        units=_UNITS,
        money=_money,
        compared=_compared(document),
    )


def _compared(document: StatementDocument) -> set[str]:
    """The rates at which there is a total: not one that every line lacks."""
    totals = document.totals
    partial = {"policy": totals.without_policy, "reference": totals.without_reference}
    return {
        name
        for name, without in partial.items()
        if not without or any(getattr(line, name) is not None for line in document.lines)
    }


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("statement.html.jinja")


def _money(view: MoneyView | None) -> str:
    return "–" if view is None else f"{view.amount} {view.currency}"
