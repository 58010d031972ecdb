"""A statement as a document: what it says, line by line, out of the cells it states. Pure functions over values.

Each line's settled amount is exact; beside it stands what is payable for it, rounded half-even to the currency's minor unit.
The total is rounded once from the exact sum, and what the rounded lines lack of it is a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from billing.money import MICRO, Money, format_scaled
from billing.prices import PriceRow
from billing.reads import parse_ids
from billing.records import MoneyView
from billing.selling import SellRow
from billing.statement_cells import Cell
from billing.views import saving_percent

SCHEMA: Final = "metergate.statement/1"


class StatementLine(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is usage, prior_period (arrived after its month was issued), rounding (only `payable`) or credit (money off the line
    at position `credits` of the statement that is credited; none: off the whole).

    `month` is the month the usage belongs to. `unit_price` is per `unit` in the list currency. Amounts are exact; `payable` is
    `settled` rounded to the minor unit, null where nothing could be settled (`unpriced`).
    """

    position: int
    kind: str
    month: str
    model: str | None = None
    token_class: str | None = None
    requests: int = 0
    quantity: int = 0
    unit: str | None = None
    unit_price: MoneyView | None = None
    price_row: int | None = None
    list: MoneyView | None = None
    policy: MoneyView | None = None
    reference: MoneyView | None = None
    settled: MoneyView | None = None
    saving: MoneyView | None = None
    saving_percent: str | None = None
    payable: MoneyView | None = None
    unpriced: bool = False
    credits: int | None = None
    terms: Ids = []
    rates: Ids = []


Ids: TypeAlias = list[int]
_Lines: TypeAlias = list[StatementLine]
_Moneys: TypeAlias = list[MoneyView]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """`settled` is the exact sum, `payable` its rounding. `policy` and `saving` cover the lines that have a policy amount, and
    `reference` those that have a reference amount: the totals are partial where `without_policy` or `without_reference` counts
    settled lines that lack one."""

    list: _Moneys
    policy: MoneyView
    reference: MoneyView
    settled: MoneyView
    saving: MoneyView
    saving_percent: str | None
    rounding: MoneyView
    payable: MoneyView
    unpriced_quantity: int
    without_policy: int = 0
    without_reference: int = 0


class Balances(msgspec.Struct, frozen=True, kw_only=True):
    """The wallet over the month. Null for a team that has no wallet in the settlement currency."""

    opening: MoneyView | None = None
    top_ups: MoneyView | None = None
    usage: MoneyView | None = None
    other: MoneyView | None = None
    closing: MoneyView | None = None


class StatementDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One document. A draft has neither number nor `issued_at`. `without_journals` names journals that were given up."""

    schema: str = SCHEMA
    kind: str
    number: str | None
    team_id: str
    team_name: str
    month: str
    timezone: str
    start: str
    end: str
    currency: str
    issued_at: str | None
    corrects: str | None
    reason: str | None
    without_journals: Names
    lines: _Lines
    totals: Totals
    balances: Balances


Names: TypeAlias = list[str]


def number_text(number: int) -> str:
    return f"MG-{number:06d}"


def lines_of(
    cells: Sequence[Cell],
    *,
    start_us: int,
    currency: str,
    months: dict[int, str],
    prices: dict[int, PriceRow],
    sells: dict[int, SellRow],
) -> list[StatementLine]:
    """Cells of one month, model, class and price are one line; the rounding line comes last, where it is not zero.

    `months` names each month by its start.
    """
    grouped: dict[tuple[int, str, str, int, int, str], list[Cell]] = {}
    for cell in cells:
        key = cell.key
        group = (key.source_start_us, key.model, key.token_class, key.price_row_id, key.sell_id, key.list_currency)
        grouped.setdefault(group, []).append(cell)
    lines = [
        _line(position, of_line, start_us, currency, months, prices, sells)
        for position, of_line in enumerate(grouped.values(), 1)
    ]
    rounding = _rounding(lines, currency)
    if rounding.nano:
        lines.append(
            StatementLine(
                position=len(lines) + 1, kind="rounding", month=months[start_us], payable=MoneyView.of(rounding)
            )
        )
    return lines


def _line(
    position: int,
    cells: Sequence[Cell],
    start_us: int,
    currency: str,
    months: dict[int, str],
    prices: dict[int, PriceRow],
    sells: dict[int, SellRow],
) -> StatementLine:
    key = cells[0].key
    price, sell = prices.get(key.price_row_id), sells.get(key.sell_id)
    settled = _sum(cell.settled_nano for cell in cells)
    policy = _sum(cell.policy_nano for cell in cells)
    exact = None if settled is None else Money(currency, settled)
    return StatementLine(
        position=position,
        kind="usage" if key.source_start_us == start_us else "prior_period",
        month=months[key.source_start_us],
        model=key.model,
        token_class=key.token_class,
        requests=sum(cell.lines for cell in cells),
        quantity=sum(cell.quantity for cell in cells),
        unit=None if price is None else price.unit,
        unit_price=None if price is None else MoneyView(unit_price(price, sell), price.currency),
        price_row=None if price is None else price.id,
        list=MoneyView.of_nano(_sum(cell.list_nano for cell in cells), key.list_currency or currency),
        policy=MoneyView.of_nano(policy, currency),
        reference=MoneyView.of_nano(_sum(cell.reference_nano for cell in cells), currency),
        settled=MoneyView.of(exact),
        saving=None if settled is None or policy is None else MoneyView.of_nano(policy - settled, currency),
        saving_percent=saving_percent(settled, policy),
        payable=None if exact is None else MoneyView.of(exact.rounded()),
        unpriced=exact is None,
        terms=sorted({cell.key.terms_id for cell in cells if cell.key.terms_id}),
        rates=sorted({rate_id for cell in cells for rate_id in parse_ids(cell.key.rate_ids)}),
    )


def unit_price(price: PriceRow, sell: SellRow | None) -> str:
    """The price per unit as the team is sold it: a multiple of the row where its sell terms say so."""
    if sell is None or sell.multiplier_micro is None:
        return format_scaled(price.amount_micro, MICRO)
    return format_scaled(price.amount_micro * sell.multiplier_micro, MICRO * MICRO)


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def nano_of(view: MoneyView | None) -> int:
    """Nothing counts nothing."""
    return 0 if view is None else Money.parse(view.amount, view.currency).nano


def _rounding(lines: Sequence[StatementLine], currency: str) -> Money:
    exact = Money(currency, sum(nano_of(line.settled) for line in lines))
    return exact.rounded() - Money(currency, sum(nano_of(line.payable) for line in lines))


def totals_of(lines: Sequence[StatementLine], currency: str, payable: MoneyView | None = None) -> Totals:
    """`payable` is the sum of what is settled, rounded, unless it is given."""
    settled = Money(currency, sum(nano_of(line.settled) for line in lines))
    compared = [line for line in lines if line.policy is not None and line.settled is not None]
    policy = sum(nano_of(line.policy) for line in compared)
    settled_there = sum(nano_of(line.settled) for line in compared)
    listed: dict[str, int] = {}
    for line in lines:
        if line.list is not None:
            listed[line.list.currency] = listed.get(line.list.currency, 0) + nano_of(line.list)

    def view(nano: int) -> MoneyView:
        return MoneyView(Money(currency, nano).amount, currency)

    return Totals(
        list=[MoneyView(Money(code, nano).amount, code) for code, nano in sorted(listed.items())],
        policy=view(policy),
        reference=view(sum(nano_of(line.reference) for line in lines)),
        settled=view(settled.nano),
        saving=view(policy - settled_there),
        saving_percent=saving_percent(settled_there, policy),
        rounding=view(sum(nano_of(line.payable) for line in lines if line.kind == "rounding")),
        payable=payable or view(settled.rounded().nano),
        unpriced_quantity=sum(line.quantity for line in lines if line.unpriced),
        without_policy=sum("policy" in lacking(line) for line in lines),
        without_reference=sum("reference" in lacking(line) for line in lines),
    )


def lacking(line: StatementLine) -> list[str]:
    """Which amounts to compare with a settled line of usage has not, because no such rate was in force."""
    if line.settled is None or line.kind not in ("usage", "prior_period"):
        return []
    return [name for name in ("policy", "reference") if getattr(line, name) is None]


def negated(line: StatementLine) -> StatementLine:
    """The line of a credit note: every count and amount taken back, prices as they were."""

    def minus(view: MoneyView | None) -> MoneyView | None:
        return None if view is None else MoneyView.of(-Money.parse(view.amount, view.currency))

    return msgspec.structs.replace(
        line,
        requests=-line.requests,
        quantity=-line.quantity,
        list=minus(line.list),
        policy=minus(line.policy),
        reference=minus(line.reference),
        settled=minus(line.settled),
        saving=minus(line.saving),
        payable=minus(line.payable),
    )


def placed(line: StatementLine, position: int) -> StatementLine:
    """The same line at another place of its document."""
    return msgspec.structs.replace(line, position=position)


def replaced(document: StatementDocument, **changes: Any) -> StatementDocument:
    return msgspec.structs.replace(document, **changes)


def encode(document: StatementDocument) -> str:
    """The canonical JSON of a document: what is stored and hashed."""
    return msgspec.json.encode(document).decode()


def decode(text: str) -> StatementDocument:
    return msgspec.json.decode(text, type=StatementDocument)
