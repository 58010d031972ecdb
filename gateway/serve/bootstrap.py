"""The first run: a team and a key, so that the first call works without reading anything."""

from __future__ import annotations

from typing import Final

from billing.teams import create_team, list_teams
from billing.times import now_us
from gateway.access import repository
from gateway.access.keys import new_key, random_id
from gateway.access.repository import KeyPolicy, KeyRow
from gateway.admin.services import AdminServices, Rooms

TEAM: Final = "default"
CURRENCY: Final = "USD"
"""The shipped price book is in USD: a team that settles in it needs no terms for its first call."""


async def first_team_key(services: AdminServices) -> str | None:
    """In a database without a team: makes one with a key and returns the key, this once. None otherwise.

    The check and the writes are one transaction that began by taking the catalog's lock, so two starts make one team.
    """
    rooms = Rooms(services)
    async with rooms.read() as connection:
        if await list_teams(connection):
            return None
    async with rooms.write() as write:
        if await list_teams(write.connection):
            return None
        team = await create_team(write.connection, name=TEAM, settlement_currency=CURRENCY)
        new = new_key(services.authenticator.pepper)
        row = KeyRow(
            f"key_{random_id()}", team.id, "first key", new.public_id, KeyPolicy(), None, now_us(), write.version
        )
        await repository.insert_key(write.connection, row, new)
        rooms.done({"team": team.id, "key": row.id})
    return new.secret.reveal()
