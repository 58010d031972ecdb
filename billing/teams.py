"""Teams: who pays, in which currency, before or after."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.currencies import check_currency
from billing.database import bump_catalog_version
from billing.errors import Conflict, InvalidTeam, NotFound
from billing.periods import zone_of
from billing.statement_tables import statements
from billing.times import now_us

BILLINGS: Final = ("postpaid", "prepaid")
LOST_CHARGES: Final = ("none", "input", "reservation")
MAX_NAME: Final = 200
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True, slots=True)
class TeamRow:
    """`billing` is postpaid or prepaid; `credit_limit_nano` (None: none) is in the settlement currency; `lost_charge` says
    what an attempt without an outcome costs the team: nothing, its input, or the whole reservation; `timezone` is where its
    statements' months begin."""

    id: str
    name: str
    settlement_currency: str
    billing: str
    credit_limit_nano: int | None
    lost_charge: str
    created_at_us: int
    timezone: str = "UTC"


def new_id(prefix: str) -> str:
    """`prefix` and 16 lowercase base32 characters: 80 random bits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(16))


async def create_team(
    connection: AsyncConnection,
    *,
    name: str,
    settlement_currency: str,
    billing: str = "postpaid",
    credit_limit_nano: int | None = None,
    lost_charge: str = "input",
    timezone: str = "UTC",
) -> TeamRow:
    """Raises `InvalidTeam` or `InvalidCurrency` naming the field, `Conflict` when the name is taken."""
    check_currency(settlement_currency, "settlement_currency")
    _check(name=name, billing=billing, credit_limit_nano=credit_limit_nano, lost_charge=lost_charge, timezone=timezone)
    await bump_catalog_version(connection)
    row = TeamRow(
        new_id("team_"), name, settlement_currency, billing, credit_limit_nano, lost_charge, now_us(), timezone
    )
    await _refuse_taken(connection, name)
    values = {column: getattr(row, column) for column in TeamRow.__dataclass_fields__}
    try:
        await connection.execute(tables.teams.insert().values(values))
    except IntegrityError as error:
        raise Conflict(f"name: a team named {name!r} exists already", field="name") from error
    return row


async def list_teams(connection: AsyncConnection, after: str | None = None, limit: int | None = None) -> list[TeamRow]:
    """Teams by id, from behind `after`; all of them without a limit."""
    query = select(tables.teams).order_by(tables.teams.c.id)
    if after is not None:
        query = query.where(tables.teams.c.id > after)
    if limit is not None:
        query = query.limit(limit)
    return [_row(row) for row in await connection.execute(query)]


async def get_team(connection: AsyncConnection, team_id: str) -> TeamRow | None:
    row = (await connection.execute(select(tables.teams).where(tables.teams.c.id == team_id))).one_or_none()
    return None if row is None else _row(row)


async def update_team(connection: AsyncConnection, team_id: str, **changes: Any) -> TeamRow:
    """Change `name`, `billing`, `credit_limit_nano`, `lost_charge` or `timezone`. The settlement currency never changes:
    amounts, budgets and balances stand in it; nor does the time zone once a statement is issued, or months would overlap.
    Raises `NotFound`, `InvalidTeam`, `InvalidTime`, `Conflict`."""
    known = {"name", "billing", "credit_limit_nano", "lost_charge", "timezone"}
    for field in changes:
        if field not in known:
            raise InvalidTeam(f"{field}: cannot be changed (create another team instead)", field=field)
    _check(**changes)
    await bump_catalog_version(connection)
    if "name" in changes:
        await _refuse_taken(connection, changes["name"], except_id=team_id)
    if "timezone" in changes:
        await _refuse_new_zone(connection, team_id, changes["timezone"])
    if changes:
        await connection.execute(update(tables.teams).where(tables.teams.c.id == team_id).values(**changes))
    row = await get_team(connection, team_id)
    if row is None:
        raise NotFound(f"no team {team_id!r}", field="team_id")
    return row


async def _refuse_taken(connection: AsyncConnection, name: str, except_id: str | None = None) -> None:
    taken = await connection.scalar(select(tables.teams.c.id).where(tables.teams.c.name == name))
    if taken is not None and taken != except_id:
        raise Conflict(f"name: a team named {name!r} exists already", field="name")


async def _refuse_new_zone(connection: AsyncConnection, team_id: str, timezone: str) -> None:
    team = await get_team(connection, team_id)
    issued = select(statements.c.id).where(statements.c.team_id == team_id, statements.c.state == "issued").limit(1)
    if team is not None and team.timezone != timezone and await connection.scalar(issued) is not None:
        raise Conflict(
            f"timezone: statements of team {team_id} are issued with months of {team.timezone}", field="timezone"
        )


def _check(**values: Any) -> None:
    if "name" in values:
        name = values["name"]
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise InvalidTeam(f"name: 1 to {MAX_NAME} printable characters", field="name")
    if values.get("billing", "postpaid") not in BILLINGS:
        raise InvalidTeam(f"billing: {values['billing']!r} is none of {', '.join(BILLINGS)}", field="billing")
    if values.get("lost_charge", "input") not in LOST_CHARGES:
        raise InvalidTeam(
            f"lost_charge: {values['lost_charge']!r} is none of {', '.join(LOST_CHARGES)}", field="lost_charge"
        )
    zone_of(values.get("timezone", "UTC"))
    limit = values.get("credit_limit_nano")
    if limit is not None and limit < 0:
        raise InvalidTeam("credit_limit: cannot be negative", field="credit_limit")


def _row(row: Row[Any]) -> TeamRow:
    return TeamRow(**row._mapping)
