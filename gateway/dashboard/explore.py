"""Usage by team, key, model or provider, one inside the other, with the same figures as a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Final

from litestar import Controller, Response, get
from litestar.response import Stream

from billing.csv_text import csv_lines
from gateway.admin.unbroken import unbroken
from gateway.dashboard.app import Seen
from gateway.dashboard.figures import (
    COUNTS,
    MONEYS,
    add_up,
    buckets,
    by_group,
    chart,
    interval_starts,
    main_currency,
    question,
)
from gateway.dashboard.inside import Json
from gateway.dashboard.security import HEADERS
from gateway.dashboard.visit import Visit

GROUPS: Final = ("team", "key", "model", "provider")
FILTERS: Final = {"team": "team_id", "key": "key_id", "model": "model", "provider": "provider"}
SHOWN: Final = 100


class ExploreController(Controller):
    path = "/explore"

    @get("/", include_in_schema=False)
    async def explore(self, visit: Seen) -> Response[str]:
        group, filters = _asked(visit)
        (over_time, _), (grouped, whole) = await asyncio.gather(
            buckets(visit, filters=filters), buckets(visit, group_by=group, interval="month", filters=filters)
        )
        summed = add_up(over_time)
        rows = by_group(grouped, group)
        free = [each for each in GROUPS if FILTERS[each] not in filters and each != group]
        return visit.page(
            "explore",
            groups=GROUPS,
            group=group,
            next_group=free[0] if free else None,
            filters=filters,
            filter_names={column: name for name, column in FILTERS.items()},
            sums=summed,
            rows=rows[:SHOWN],
            more=len(rows) > SHOWN or not whole,
            chart=chart(visit, over_time, "settled", main_currency(summed)),
            names=visit.names,
        )

    @get("/series.json", include_in_schema=False)
    async def series(self, visit: Seen) -> Response[object]:
        """Requests and errors of every interval, for the chart that can be zoomed. `[[seconds], [requests], [errors]]`."""
        _, filters = _asked(visit)
        found, _ = await buckets(visit, filters=filters)
        rows = {row["start"]: row for row in found}
        starts = interval_starts(visit)
        at = [int(datetime.fromisoformat(start).timestamp()) for start in starts]
        data = [
            at,
            *([rows[start][name] if start in rows else 0 for start in starts] for name in ("requests", "errors")),
        ]
        speech = visit.look.speech
        labels = [speech.say("Time"), speech.say("Requests"), speech.say("Errors")]
        return Response({"data": data, "labels": labels, "timezone": visit.range.timezone}, headers=HEADERS)

    @get("/export.csv", include_in_schema=False)
    async def export(self, visit: Seen) -> Stream:
        """Every interval and group of the page, sent as they are read; amounts as they stand in the ledger, one column per
        currency."""
        group, filters = _asked(visit)
        whole, _ = await buckets(visit, interval="month", filters=filters)
        columns = sorted({(name, view["currency"]) for row in whole for name in MONEYS for view in row[name]})
        classes = sorted({name for row in whole for name in row["tokens"]})
        header = ["start", "end", group, *COUNTS, *(f"tokens {name}" for name in classes)]
        header += [f"{name} {currency}" for name, currency in columns]

        async def lines() -> AsyncGenerator[str, None]:
            yield csv_lines([header])
            async for page in visit.api.pages("/usage", question(visit, group_by=group, filters=filters)):
                yield csv_lines(_line(row, group, classes, columns) for row in page)

        name = f"usage-{visit.range.first_day}-{visit.range.last_day}-by-{group}.csv"
        headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
        return Stream(unbroken(lines()), media_type="text/csv; charset=utf-8", headers=headers)

    @get("/focus.csv", include_in_schema=False)
    async def focus(self, visit: Seen) -> Stream:
        """The range and filters of the page as FOCUS 1.2 rows, sent as they are made."""
        _, filters = _asked(visit)
        asked = {"timezone": visit.range.timezone, "interval": visit.range.interval, **filters, **visit.team}
        pieces = visit.api.pieces("/usage/focus", {**visit.range.bounds, **asked})
        await anext(pieces)
        name = f"focus-{visit.range.first_day}-{visit.range.last_day}.csv"
        headers = {**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
        return Stream(unbroken(pieces), media_type="text/csv; charset=utf-8", headers=headers)


def _line(row: Json, group: str, classes: Sequence[str], columns: Sequence[tuple[str, str]]) -> list[object]:
    """Raises `KeyError` for what came after the header was written: the file breaks off, instead of lacking an amount."""
    at_class, at_column = {name: at for at, name in enumerate(classes)}, {each: at for at, each in enumerate(columns)}
    tokens, amounts = [0] * len(classes), ["0"] * len(columns)
    for name, count in row["tokens"].items():
        tokens[at_class[name]] = count
    for name in MONEYS:
        for view in row[name]:
            amounts[at_column[name, view["currency"]]] = view["amount"]
    return [row["start"], row["end"], row["group"][group], *(row[name] for name in COUNTS), *tokens, *amounts]


def _asked(visit: Visit) -> tuple[str, dict[str, str]]:
    query = visit.look.query
    filters = {column: query[column] for column in FILTERS.values() if query.get(column)}
    group = query.get("group", "model" if visit.principal.team_id else "team")
    return group if group in GROUPS else "team", filters
