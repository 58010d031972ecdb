"""The first page: what was spent and saved, what went wrong, how fast it was, and what the budgets have left."""

from __future__ import annotations

import asyncio

from litestar import Controller, Response, get

from billing.database import reading
from billing.latency import latency
from billing.times import format_time, now_us
from billing.watermarks import journals_behind
from gateway.dashboard.app import Seen
from gateway.dashboard.budget_lines import budget_lines
from gateway.dashboard.figures import add_up, buckets, by_group, chart, main_currency

CHARTS = ("settled", "requests", "tokens")
TOP = 6


class OverviewController(Controller):
    path = "/"

    @get("/", include_in_schema=False)
    async def overview(self, visit: Seen) -> Response[str]:
        (found, _), (grouped, _) = await asyncio.gather(
            buckets(visit), buckets(visit, group_by="team,model", interval="month")
        )
        summed = add_up(found)
        what = visit.look.query.get("chart", "settled")
        team_id = visit.principal.team_id
        async with reading(visit.services.database) as connection:
            speed = await latency(connection, visit.range.start_us, visit.range.end_us, team_id=team_id)
            behind = await journals_behind(connection, now_us())
        return visit.page(
            "overview",
            sums=summed,
            chart=chart(visit, found, what if what in CHARTS else "settled", main_currency(summed)),
            charts=CHARTS,
            what=what,
            models=by_group(grouped, "model")[:TOP],
            teams=by_group(grouped, "team")[:TOP],
            names=visit.names,
            speed=speed,
            budgets=await budget_lines(visit.services, team_id),
            complete=format_time(behind[0].watermark_us) if behind else None,
        )
