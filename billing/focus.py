"""Statements and ranges of usage as rows of FOCUS 1.2, the FinOps Open Cost and Usage Specification
(https://focus.finops.org, version 1.2).

The pricing currency is that of the price row (USD), the billing currency the team's (CNY). One row per cell, so that one row has
one rate:

    ListUnitPrice        list price x reference rate (the market's), ListCost = ListUnitPrice x PricingQuantity
    ContractedUnitPrice  list price x settlement rate, ContractedCost = ContractedUnitPrice x PricingQuantity
    BilledCost           what the usage rows settle at: each request rounded to nano once, then summed
    PricingCurrency…     the same in the pricing currency, before any exchange

Contracted and billed cost differ by those roundings only, at most half a nano a request. In a statement one Adjustment row takes
the billed sum to what the invoice says. Where no reference rate is in force, the list price is taken at the settlement rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from billing.csv_text import write_csv
from billing.exchange import IDENTITY, Quote, RateBook, RateKind, RateRow
from billing.money import MICRO, NANO, Money, divide_half_even, format_scaled
from billing.prices import UNIT_SIZE, PriceRow
from billing.reads import parse_ids
from billing.selling import SellRow
from billing.statement_cells import Cell
from billing.statement_documents import StatementDocument, StatementLine, nano_of
from billing.terms import TermsRow
from billing.times import DAY_US

COLUMNS: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_ConsumedQuantity",
    "x_PolicyCost",
    "x_ReferenceCost",
    "x_Requests",
    "x_RateIds",
    "x_TermsId",
    "x_TokenClass",
    "x_Unpriced",
)
ISSUER: Final = "Metergate"
DECIMALS: Final = 18
"""Unit prices and quantities that do not end are printed to this many decimals; costs are products of what is printed."""
_SCALE: Final = 10**DECIMALS
_UNITS: Final[dict[str, tuple[str, str]]] = {
    "mtok": ("Tokens", "1000000 Tokens"),
    "request": ("Requests", "Requests"),
    "second": ("Seconds", "Seconds"),
    "image": ("Images", "Images"),
    "hour": ("Microseconds", "Hours"),
}
"""Price unit: the unit that is counted, the unit that is priced."""

FocusRow = dict[str, str | None]


class Billed(Protocol):
    """Who is billed, and for which period (RFC 3339): a statement's document, or the head of an export."""

    @property
    def team_id(self) -> str: ...
    @property
    def team_name(self) -> str: ...
    @property
    def currency(self) -> str: ...
    @property
    def start(self) -> str: ...
    @property
    def end(self) -> str: ...
    @property
    def number(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class FocusCatalog:
    """The catalog rows that cells name, by id."""

    prices: Mapping[int, PriceRow]
    sells: Mapping[int, SellRow]
    terms: Mapping[int, TermsRow]
    rates: Mapping[int, RateRow]


@dataclass(frozen=True, slots=True)
class FocusSource:
    """What the rows are made of: the statement, its cells and the catalog rows that they name."""

    document: StatementDocument
    cells: Sequence[Cell]
    months: Mapping[int, tuple[str, str]]
    """Start and end of each cell's month, as RFC 3339."""
    catalog: FocusCatalog


def focus_rows(source: FocusSource) -> list[FocusRow]:
    """The rows of a statement; their BilledCost sums to its payable amount exactly."""
    document = source.document
    rows = []
    for cell in source.cells:
        start, end = source.months[cell.key.source_start_us]
        late = start != document.start or document.kind != "statement"
        row = usage_row(document, source.catalog, cell, start, end)
        rows.append(row | {"ChargeClass": "Correction" if late else None})
    credits = [line for line in source.document.lines if line.kind == "credit"]
    rows += [_credit_row(source.document, line) for line in credits]
    billed = sum(cell.settled_nano or 0 for cell in source.cells) + sum(nano_of(line.payable) for line in credits)
    payable = source.document.totals.payable
    difference = Money.parse(payable.amount, payable.currency).nano - billed
    if difference:
        rows.append(_rounding_row(source.document, difference))
    return rows


def focus_csv(rows: Iterable[FocusRow]) -> str:
    return write_csv(COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


def usage_row(billed: Billed, catalog: FocusCatalog, cell: Cell, start: str, end: str) -> FocusRow:
    """The row of one cell, whose usage lies in start..end."""
    key = cell.key
    price = catalog.prices.get(key.price_row_id)
    row = _common(billed)
    row |= {
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{key.model} {key.token_class} over {key.provider or 'no provider'}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": start,
        "ChargePeriodEnd": end,
        "BilledCost": _nano(cell.settled_nano or 0),
        "EffectiveCost": _nano(cell.settled_nano or 0),
        "PublisherName": key.provider or ISSUER,
        "ResourceId": f"{key.provider}/{key.provider_model}" if key.provider else None,
        "ResourceName": key.provider_model or None,
        "ResourceType": "Model" if key.provider else None,
        "ServiceName": key.model,
        "x_ConsumedQuantity": str(cell.quantity),
        "x_PolicyCost": None if cell.policy_nano is None else _nano(cell.policy_nano),
        "x_ReferenceCost": None if cell.reference_nano is None else _nano(cell.reference_nano),
        "x_Requests": str(cell.lines),
        "x_RateIds": key.rate_ids.replace(",", " ") or None,
        "x_TermsId": str(key.terms_id) if key.terms_id else None,
        "x_TokenClass": key.token_class,
        "x_Unpriced": "true" if cell.settled_nano is None else "false",
    }
    if price is None or cell.settled_nano is None:
        return row | {"ContractedCost": row["BilledCost"], "ListCost": row["BilledCost"]}
    return row | _priced(billed.currency, catalog, cell, price)


def _priced(billing_currency: str, catalog: FocusCatalog, cell: Cell, price: PriceRow) -> FocusRow:
    key = cell.key
    sell = catalog.sells.get(key.sell_id)
    unit = Fraction(price.amount_micro, MICRO)
    if sell is not None and sell.multiplier_micro is not None:
        unit *= Fraction(sell.multiplier_micro, MICRO)
    market, contract = _quotes(catalog, cell, price.currency, billing_currency)
    quantity = _printed(Fraction(cell.quantity, UNIT_SIZE[price.unit]))
    listed, contracted = _printed(unit * market), _printed(unit * contract)
    counted, priced = _UNITS[price.unit]
    return {
        "ConsumedQuantity": str(cell.quantity),
        "ConsumedUnit": counted,
        "ContractedCost": _exact(contracted * quantity),
        "ContractedUnitPrice": _exact(contracted),
        "ListCost": _exact(listed * quantity),
        "ListUnitPrice": _exact(listed),
        "PricingCategory": "Standard",
        "PricingCurrency": price.currency,
        "PricingCurrencyContractedUnitPrice": _exact(_printed(unit)),
        "PricingCurrencyEffectiveCost": _nano(cell.list_nano or 0),
        "PricingCurrencyListUnitPrice": _exact(_printed(unit)),
        "PricingQuantity": _exact(quantity),
        "PricingUnit": priced,
        "SkuId": f"{price.price_list}/{price.model}/{price.token_class}",
        "SkuMeter": f"{price.token_class} {counted}",
        "SkuPriceId": str(price.id) if not key.sell_id else f"{price.id}-{key.sell_id}",
    }


def _quotes(catalog: FocusCatalog, cell: Cell, base: str, quote: str) -> tuple[Fraction, Fraction]:
    """The reference rate and the settlement rate that the cell's requests were rated at, out of the rows they name."""
    if base == quote:
        return Fraction(1), Fraction(1)
    rows = [catalog.rates[each] for each in parse_ids(cell.key.rate_ids) if each in catalog.rates]
    at_us = max((row.effective_from_us for row in rows), default=0)
    book = RateBook(rows, reference_max_age_us=200 * 365 * DAY_US)
    terms = catalog.terms.get(cell.key.terms_id)
    settled = None if terms is None else terms.settlement(book, at_us, book.version)
    market = book.find(RateKind.REFERENCE, base, quote, at_us, book.version)
    settled = settled or market or IDENTITY
    return _fraction(market or settled), _fraction(settled)


def _fraction(quote: Quote) -> Fraction:
    return Fraction(quote.numerator, quote.denominator)


def _credit_row(document: StatementDocument, line: StatementLine) -> FocusRow:
    """Money off a line or the whole of an earlier invoice: no usage, so no SKU and no quantity."""
    of = "" if line.model is None else f" for {line.model} {line.token_class}"
    return _without_sku(document, nano_of(line.payable)) | {
        "ChargeCategory": "Credit",
        "ChargeDescription": f"Credit on {document.corrects}{of}: {document.reason}",
        "ServiceName": line.model or "Credit",
        "x_TokenClass": line.token_class,
    }


def _rounding_row(document: StatementDocument, nano: int) -> FocusRow:
    return _without_sku(document, nano) | {
        "ChargeCategory": "Adjustment",
        "ChargeDescription": f"Rounding of the invoice to the minor unit of {document.currency}",
        "ServiceName": "Rounding",
    }


def _without_sku(document: StatementDocument, nano: int) -> FocusRow:
    amount = _nano(nano)
    return _common(document) | {
        "ChargeClass": None if document.kind == "statement" else "Correction",
        "ChargeFrequency": "One-Time",
        "ChargePeriodStart": document.start,
        "ChargePeriodEnd": document.end,
        "BilledCost": amount,
        "ContractedCost": amount,
        "EffectiveCost": amount,
        "ListCost": amount,
        "PublisherName": ISSUER,
        "x_Requests": "0",
        "x_Unpriced": "false",
    }


def _common(billed: Billed) -> FocusRow:
    row: FocusRow = dict.fromkeys(COLUMNS)
    return row | {
        "BillingAccountId": billed.team_id,
        "BillingAccountName": billed.team_name,
        "BillingAccountType": "Team",
        "BillingCurrency": billed.currency,
        "BillingPeriodStart": billed.start,
        "BillingPeriodEnd": billed.end,
        "InvoiceId": billed.number,
        "InvoiceIssuerName": ISSUER,
        "ProviderName": ISSUER,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
    }


def _nano(nano: int) -> str:
    return format_scaled(nano, NANO)


def _printed(value: Fraction) -> Fraction:
    """The value as it can be printed: rounded half-even to the last decimal there is room for."""
    return Fraction(divide_half_even(value.numerator * _SCALE, value.denominator), _SCALE)


def _exact(value: Fraction) -> str:
    scale = _SCALE * _SCALE
    scaled = value * scale
    assert scaled.denominator == 1
    return format_scaled(scaled.numerator, scale)
