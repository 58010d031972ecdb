"""Budgets as people watch them: what is spent in the present period, and what running requests hold."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from billing.budgets import BudgetRow, list_budgets
from billing.database import reading
from billing.errors import NoRate
from billing.money import Money
from billing.spending import spent
from billing.times import format_time, now_us, quarter_of
from gateway.admission.periods import Periods
from gateway.admission.store import StoreUnavailable
from gateway.dashboard.inside import Json
from gateway.services import Services


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """Money as the API shows it. `reserved` is None while the limit store does not answer, `spent` None where no rate leads
    to the budget's currency; `used` is the share of both in the amount, in percent, at most 100."""

    id: int
    scope: str
    scope_id: str | None
    hard: bool
    period: str
    amount: Json
    spent: Json | None
    reserved: Json | None
    used: Decimal
    resets_at: str | None


async def budget_lines(services: Services, team_id: str | None) -> list[BudgetLine]:
    """Every budget that has not ended; of one team, those over it and its keys."""
    at_us = now_us()
    periods = Periods()
    snapshot = services.catalog.snapshot
    lines = []
    async with reading(services.database) as connection:
        rows = [row for row in await list_budgets(connection) if team_id is None or _is_of(services, row, team_id)]
        windows = {row.id: periods.of(row, at_us) for row in rows}
        try:
            view = await services.admission.store.view("", [period.window for period in windows.values()])
            reserved = {row.id: view.budgets[windows[row.id].window].reserved_nano for row in rows}
        except StoreUnavailable:
            reserved = {}
        for row in rows:
            period = windows[row.id]
            try:
                gone = await spent(
                    connection,
                    row.scope,
                    row.scope_id,
                    row.currency,
                    quarter_of(period.start_us),
                    rates=snapshot.books.rates,
                )
            except NoRate:
                gone = None
            held = reserved.get(row.id)
            lines.append(_line(row, gone, held, None if period.end_us is None else format_time(period.end_us)))
    return sorted(lines, key=lambda line: -line.used)


def _is_of(services: Services, row: BudgetRow, team_id: str) -> bool:
    if row.scope == "team":
        return row.scope_id == team_id
    keys = services.catalog.snapshot.keys.values()
    return row.scope == "key" and any(key.key_id == row.scope_id and key.team_id == team_id for key in keys)


def _line(row: BudgetRow, gone: Money | None, held: int | None, resets_at: str | None) -> BudgetLine:
    taken = (0 if gone is None else gone.nano) + (held or 0)
    used = Decimal(100) if row.amount_nano == 0 else min(Decimal(100), Decimal(taken) * 100 / row.amount_nano)

    def money(nano: int) -> Json:
        return {"amount": Money(row.currency, nano).amount, "currency": row.currency}

    return BudgetLine(
        row.id,
        row.scope,
        row.scope_id,
        row.hard,
        row.period,
        money(row.amount_nano),
        None if gone is None else money(gone.nano),
        None if held is None else money(held),
        used,
        resets_at,
    )
