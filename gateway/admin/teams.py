"""Teams: who pays, in which currency, before or after."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Controller, get, patch, post
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, Meta, Struct, UnsetType

from billing.checks import parse_field
from billing.money import NANO, format_scaled
from billing.teams import TeamRow, create_team, get_team, list_teams, update_team
from gateway.admin.failures import missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, IdText, Limit, cut, decode_cursor
from gateway.admin.services import Editable, Injected
from gateway.admin.texts import Currency, Decimal, Text, moment

Billing = Literal["postpaid", "prepaid"]
LostCharge = Literal["none", "input", "reservation"]
"""What a team pays for a request whose outcome was lost."""
Zone = Annotated[str, Meta(min_length=1, max_length=64, description="IANA name: where the months of statements begin.")]


class CreateTeam(Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    settlement_currency: Currency
    billing: Billing = "postpaid"
    credit_limit: Annotated[Decimal, Meta(description="How far below zero a prepaid balance may go.")] | None = None
    lost_charge: LostCharge = "input"
    timezone: Zone = "UTC"


class ChangeTeam(Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays. The settlement currency cannot change: amounts and budgets stand in it."""

    name: Text | UnsetType = UNSET
    billing: Billing | UnsetType = UNSET
    credit_limit: Decimal | UnsetType | None = UNSET
    lost_charge: LostCharge | UnsetType = UNSET
    timezone: Zone | UnsetType = UNSET


class TeamView(Editable, frozen=True):
    id: str
    name: str
    settlement_currency: str
    billing: str
    credit_limit: str | None
    lost_charge: str
    timezone: str
    created_at: str | None


class TeamPage(Struct, frozen=True):
    data: list[TeamView]
    next_cursor: str | None


class TeamsController(Controller):
    path = "/teams"
    tags = ("teams",)

    @post(summary="Create a team")
    async def create(self, data: JSONBody[CreateTeam], rooms: Injected) -> TeamView:
        credit_limit_nano = _nano(data.credit_limit)
        async with rooms.write() as write:
            row = await create_team(
                write.connection,
                name=data.name,
                settlement_currency=data.settlement_currency,
                billing=data.billing,
                credit_limit_nano=credit_limit_nano,
                lost_charge=data.lost_charge,
                timezone=data.timezone,
            )
            return rooms.done(_view(row))

    @get(summary="List teams")
    async def index(self, rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> TeamPage:
        async with rooms.read() as connection:
            rows = await list_teams(connection, decode_cursor(cursor, IdText), limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return TeamPage([_view(row) for row in page], next_cursor)

    @get("/{team_id:str}", summary="One team")
    async def one(self, team_id: FromPath[str], rooms: Injected) -> TeamView:
        async with rooms.read() as connection:
            row = await get_team(connection, team_id)
        if row is None:
            raise missing("team", team_id)
        return _view(row)

    @patch("/{team_id:str}", summary="Change a team")
    async def change(self, team_id: FromPath[str], data: JSONBody[ChangeTeam], rooms: Injected) -> TeamView:
        changes: dict[str, Any] = {}
        for name in ("name", "billing", "lost_charge", "timezone"):
            if getattr(data, name) is not UNSET:
                changes[name] = getattr(data, name)
        if data.credit_limit is not UNSET:
            changes["credit_limit_nano"] = _nano(data.credit_limit)
        async with rooms.write() as write:
            before = await get_team(write.connection, team_id)
            if before is None:
                raise missing("team", team_id)
            rooms.editing(_view(before))
            return rooms.done(_view(await update_team(write.connection, team_id, **changes)))


def _nano(amount: str | None) -> int | None:
    return None if amount is None else parse_field(amount, NANO, "credit_limit")


def _view(row: TeamRow) -> TeamView:
    limit = None if row.credit_limit_nano is None else format_scaled(row.credit_limit_nano, NANO)
    return TeamView(
        row.id,
        row.name,
        row.settlement_currency,
        row.billing,
        limit,
        row.lost_charge,
        row.timezone,
        moment(row.created_at_us),
    )
