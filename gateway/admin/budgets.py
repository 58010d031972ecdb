"""Budgets: so much money per period for a team, a key or everybody. To change one, end it and create another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from litestar import Controller, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct
from msgspec.structs import asdict

from billing.budgets import BudgetRow, create_budget, end_budget, get_budget, list_budgets
from billing.money import INT64_MAX, NANO, format_scaled
from billing.teams import get_team
from billing.times import now_us
from gateway.access.repository import get_key, key_ids
from gateway.admin.failures import invalid, missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.services import CatalogWrite, Injected, Rooms
from gateway.admin.texts import Currency, Decimal, Text, moment
from gateway.admission.standings import Standing, standings


class CreateBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """Hard (the default): a request that could exceed it is refused. An amount of 0 allows nothing."""

    scope: Literal["team", "key", "all"]
    amount: Decimal
    currency: Currency
    period: Literal["day", "week", "month", "total"]
    scope_id: Text | None = None
    timezone: Annotated[str, Meta(max_length=64, description="IANA name, such as Asia/Shanghai.")] = "UTC"
    hard: bool = True
    thresholds: Annotated[
        list[int] | None,
        Meta(description="Percentages of the amount at which it is told of once a period; null: the configured ones."),
    ] = None


class BudgetView(Struct, frozen=True):
    id: int
    scope: str
    scope_id: str | None
    amount: str
    currency: str
    period: str
    timezone: str
    hard: bool
    thresholds: list[int] | None
    created_at: str | None
    ended_at: str | None


class BudgetState(BudgetView, frozen=True, kw_only=True):
    """With what is spent and reserved of its present period; null where that cannot be told now, or it has ended."""

    spent: str | None
    reserved: str | None
    remaining: str | None
    resets_at: str | None


class BudgetPage(Struct, frozen=True):
    data: list[BudgetState]
    next_cursor: str | None


class BudgetsController(Controller):
    path = "/budgets"
    tags = ("budgets",)

    @post(summary="Create a budget")
    async def create(self, data: JSONBody[CreateBudget], rooms: Injected) -> BudgetView:
        async with rooms.write() as write:
            if data.scope == "key" and data.scope_id is not None:
                await _check_key_currency(write, data.scope_id, data.currency)
            row = await create_budget(
                write.connection,
                scope=data.scope,
                scope_id=data.scope_id,
                amount=data.amount,
                currency=data.currency,
                period=data.period,
                timezone=data.timezone,
                hard=data.hard,
                thresholds=data.thresholds,
            )
            return rooms.done(_view(row))

    @get(summary="List budgets")
    async def index(
        self,
        rooms: Injected,
        ended: FromQuery[bool] = False,
        team_id: Annotated[str | None, QueryParameter(max_length=200)] = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> BudgetPage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            own = None if team_id is None else [team_id, *await key_ids(connection, team_id)]
            rows = await list_budgets(connection, after, limit + 1, ended=ended, scope_ids=own)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return BudgetPage(await _states(rooms, page), next_cursor)

    @get("/{budget_id:int}", summary="One budget")
    async def one(self, budget_id: FromPath[int], rooms: Injected) -> BudgetState:
        async with rooms.read() as connection:
            row = await get_budget(connection, budget_id) if budget_id <= INT64_MAX else None
        if row is None:
            raise missing("budget", budget_id)
        (state,) = await _states(rooms, [row])
        return state

    @post("/{budget_id:int}/end", status_code=200, summary="End a budget; ending it twice changes nothing")
    async def end(self, budget_id: FromPath[int], rooms: Injected) -> BudgetView:
        if budget_id > INT64_MAX:
            raise missing("budget", budget_id)
        async with rooms.write() as write:
            before = await get_budget(write.connection, budget_id)
            rooms.editing(None if before is None else _view(before))
            return rooms.done(_view(await end_budget(write.connection, budget_id)))


async def _check_key_currency(write: CatalogWrite, key_id: str, currency: str) -> None:
    """A key's budget stands in the settlement currency of its team, like everything the key spends."""
    key = await get_key(write.connection, key_id)
    if key is None:
        raise invalid(f"scope_id: there is no key {key_id!r}", "scope_id")
    team = await get_team(write.connection, key.team_id)
    assert team is not None
    if team.settlement_currency != currency:
        message = f"currency: the key's team settles in {team.settlement_currency}, not in {currency}"
        raise invalid(message, "currency")


async def _states(rooms: Rooms, rows: Sequence[BudgetRow]) -> list[BudgetState]:
    running = [row for row in rows if row.ended_at_us is None]
    found = await standings(rooms.services.admission, running, now_us())
    return [_state(row, found.get(row.id)) for row in rows]


def _state(row: BudgetRow, standing: Standing | None) -> BudgetState:
    fields = asdict(_view(row))
    if standing is None:
        return BudgetState(**fields, spent=None, reserved=None, remaining=None, resets_at=None)
    left = max(0, row.amount_nano - standing.spent_nano - standing.reserved_nano)
    return BudgetState(
        **fields,
        spent=format_scaled(standing.spent_nano, NANO),
        reserved=format_scaled(standing.reserved_nano, NANO),
        remaining=format_scaled(left, NANO),
        resets_at=moment(standing.resets_at_us),
    )


def _view(row: BudgetRow) -> BudgetView:
    return BudgetView(
        row.id,
        row.scope,
        row.scope_id,
        format_scaled(row.amount_nano, NANO),
        row.currency,
        row.period,
        row.timezone,
        row.hard,
        None if row.thresholds is None else list(row.thresholds),
        moment(row.created_at_us),
        moment(row.ended_at_us),
    )
