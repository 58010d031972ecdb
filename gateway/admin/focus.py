"""Usage of any range and filter as a FOCUS 1.2 file, made and sent piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from litestar import Controller, get
from litestar.response import Stream

from billing.csv_text import csv_lines
from billing.focus import COLUMNS
from billing.focus_export import (
    FocusPiece,
    FocusQuery,
    focus_months,
    focus_spans,
    focus_teams,
    read_piece,
    rows_of_piece,
    used_quarters,
)
from billing.teams import TeamRow
from billing.times import format_time
from gateway.access.repository import get_key
from gateway.admin.services import Injected, Rooms
from gateway.admin.unbroken import unbroken
from gateway.admin.usage import End, Id, Interval, Start, TimeZone, usage_range


class FocusController(Controller):
    path = "/usage/focus"
    tags = ("usage",)

    @get(summary="Usage as FOCUS 1.2 rows, per hour, day or month of a time zone", media_type="text/csv")
    async def export(
        self,
        rooms: Injected,
        start: Start = None,
        end: End = None,
        interval: Interval = "day",
        timezone: TimeZone = "UTC",
        team_id: Id = None,
        key_id: Id = None,
        model: Id = None,
        provider: Id = None,
    ) -> Stream:
        asked = FocusQuery(*usage_range(start, end), interval, timezone, team_id, model=model, provider=provider)
        teams: list[TeamRow] = []
        async with rooms.read() as connection:
            asked.check()
            key = None if key_id is None else await get_key(connection, key_id)
            if key_id is None:
                teams = await focus_teams(connection, asked)
            elif key is not None and team_id in (None, key.team_id):
                asked = replace(asked, team_id=key.team_id, key_id=key.id, key_name=key.name)
                teams = await focus_teams(connection, asked)
        name = f"focus-{format_time(asked.start_us)[:10]}-{format_time(asked.end_us - 1)[:10]}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}
        return Stream(unbroken(_file(rooms, asked, teams)), media_type="text/csv; charset=utf-8", headers=headers)


async def _file(rooms: Rooms, asked: FocusQuery, teams: list[TeamRow]) -> AsyncGenerator[str, None]:
    """Each piece is read in one go and sent afterwards, so that a slow reader holds no connection of the database; what takes
    CPU is done beside the requests of callers."""
    yield csv_lines([COLUMNS])
    for team in teams:
        for month in focus_months(asked, team):
            async with rooms.read() as connection:
                used = await used_quarters(connection, team, month)
            for spans in await asyncio.to_thread(focus_spans, asked, month, used) if used else ():
                async with rooms.read() as connection:
                    piece = await read_piece(connection, asked, team, spans)
                if piece.cells:
                    yield await asyncio.to_thread(_lines, piece)


def _lines(piece: FocusPiece) -> str:
    return csv_lines([row[name] for name in COLUMNS] for row in rows_of_piece(piece))
