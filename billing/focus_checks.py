"""Our own reading of FOCUS 1.2's rules, as checks over rows: what a validator would refuse, by row and rule.

The rules are the normative ones of the specification's column pages that apply to the columns we give out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from billing.currencies import MINOR_DIGITS
from billing.errors import InvalidTime
from billing.focus import COLUMNS, FocusRow
from billing.times import parse_time

MANDATORY: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
)
"""Never null."""
NUMERIC: Final = tuple(
    name
    for name in COLUMNS
    if name.endswith(("Cost", "UnitPrice", "Quantity")) or name == "PricingCurrencyEffectiveCost"
)
ALLOWED: Final[dict[str, frozenset[str | None]]] = {
    "ChargeCategory": frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"}),
    "ChargeClass": frozenset({None, "Correction"}),
    "ChargeFrequency": frozenset({None, "One-Time", "Recurring", "Usage-Based"}),
    "PricingCategory": frozenset({None, "Standard", "Dynamic", "Committed", "Other"}),
    "ServiceCategory": frozenset({"AI and Machine Learning"}),
    "ServiceSubcategory": frozenset({"Generative AI"}),
}
_DECIMAL: Final = re.compile(r"-?\d+(\.\d+)?")


def focus_faults(rows: Sequence[FocusRow], payable: str) -> list[str]:
    """Every rule that a row breaks, as `row 3: ListCost is not …`; empty when all hold. `payable` is what the invoice says."""
    faults = [f"row {at}: {fault}" for at, row in enumerate(rows, 1) for fault in _row_faults(row)]
    if not faults:
        billed = sum((Fraction(row["BilledCost"] or "0") for row in rows), Fraction(0))
        if billed != Fraction(payable):
            faults.append(f"BilledCost sums to {billed}, the invoice says {payable}")
    return faults


def _row_faults(row: FocusRow) -> list[str]:
    names = list(row)
    if names != list(COLUMNS):
        return [f"columns are not FOCUS's: {sorted(set(names) ^ set(COLUMNS))}"]
    faults = [f"{name} is null" for name in MANDATORY if row[name] in (None, "")]
    faults += [f"{name} {row[name]!r} is not allowed" for name, known in ALLOWED.items() if row[name] not in known]
    faults += [f"{name} {row[name]!r} is no decimal" for name in NUMERIC if not _is_decimal(row[name])]
    for name in ("BillingCurrency", "PricingCurrency"):
        if row[name] is not None and row[name] not in MINOR_DIGITS:
            faults.append(f"{name} {row[name]!r} is no ISO 4217 code")
    return faults or [*_period_faults(row), *_sku_faults(row), *_product_faults(row)]


def _is_decimal(value: str | None) -> bool:
    return value is None or _DECIMAL.fullmatch(value) is not None


def _period_faults(row: FocusRow) -> list[str]:
    names = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
    if not all((row[name] or "").endswith("Z") for name in names):
        return ["a time is not in UTC"]
    try:
        bill_start, bill_end, start, end = (parse_time(row[name] or "", name) for name in names)
    except InvalidTime as error:
        return [str(error)]
    faults = []
    if not bill_start < bill_end or not start < end:
        faults.append("a period ends before it starts")
    if row["ChargeClass"] is None and not (bill_start <= start and end <= bill_end):
        faults.append("the charge period lies outside the billing period, and the row is no correction")
    return faults


def _sku_faults(row: FocusRow) -> list[str]:
    """A SKU price carries quantity, unit and prices with it; without one there are none."""
    dependent = (
        "ConsumedQuantity",
        "ConsumedUnit",
        "ContractedUnitPrice",
        "ListUnitPrice",
        "PricingCategory",
        "PricingCurrency",
        "PricingCurrencyListUnitPrice",
        "PricingQuantity",
        "PricingUnit",
        "SkuId",
        "SkuMeter",
    )
    priced = row["SkuPriceId"] is not None
    faults = [f"{name} and SkuPriceId are not null together" for name in dependent if (row[name] is not None) != priced]
    if row["ChargeCategory"] == "Usage" and not priced and row["x_Unpriced"] != "true":
        faults.append("SkuPriceId is null on priced usage")
    return faults


def _product_faults(row: FocusRow) -> list[str]:
    """Unit price x PricingQuantity = cost, exactly; what is billed differs from it by half a nano a request at most."""
    if row["SkuPriceId"] is None:
        return []
    quantity = Fraction(row["PricingQuantity"] or "")
    faults = [
        f"{unit} x PricingQuantity is not {cost}"
        for unit, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost"))
        if Fraction(row[unit] or "") * quantity != Fraction(row[cost] or "")
    ]
    apart = abs(Fraction(row["BilledCost"] or "") - Fraction(row["ContractedCost"] or ""))
    if apart > Fraction(max(abs(int(row["x_Requests"] or "0")), 1), 10**9):
        faults.append(f"BilledCost is {apart} off ContractedCost: more than roundings can be")
    return faults
