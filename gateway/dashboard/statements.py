"""Statements: draft a month, issue it, print it, take it back."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath

from gateway.admin.statement_page import HEADERS as PRINT_HEADERS
from gateway.dashboard.app import Seen, read_form
from gateway.dashboard.inside import Json, Refused
from gateway.dashboard.security import HEADERS
from gateway.dashboard.visit import Visit

FORMATS = {"html": "text/html", "csv": "text/csv", "focus": "text/csv"}


class StatementsController(Controller):
    path = "/statements"

    @get("/", include_in_schema=False)
    async def index(self, visit: Seen) -> Response[str]:
        return await _page(visit)

    @post("/", include_in_schema=False)
    async def draft(self, request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        return await _do(visit, f"/statements/{form.get('team_id', '-')}", {"month": form.get("month", "")}, form)

    @post("/{team_id:str}/{statement_id:int}/{verb:str}", include_in_schema=False)
    async def act(
        self,
        team_id: FromPath[str],
        statement_id: FromPath[int],
        verb: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Seen,
    ) -> Response[Any]:
        form = await read_form(request)
        body = {"reason": form["reason"]} if verb == "credit-note" and "reason" in form else {}
        path = f"/statements/{team_id}/{statement_id}/{verb if verb in ('issue', 'discard', 'credit-note') else '-'}"
        return await _do(visit, path, body, {"team_id": team_id})

    @get("/{team_id:str}/{statement_id:int}/{form:str}", include_in_schema=False)
    async def show(
        self, team_id: FromPath[str], statement_id: FromPath[int], form: FromPath[str], visit: Seen
    ) -> Response[bytes]:
        """The document itself: a page to print, CSV, or FOCUS rows."""
        kind = form if form in FORMATS else "html"
        content = await visit.api.raw("GET", f"/statements/{team_id}/{statement_id}", {"format": kind})
        headers = {**HEADERS, **(PRINT_HEADERS if kind == "html" else {})}
        if kind != "html":
            headers["content-disposition"] = f'attachment; filename="statement-{statement_id}.{kind}.csv"'
        return Response(content, media_type=f"{FORMATS[kind]}; charset=utf-8", headers=headers)


async def _page(visit: Visit) -> Response[str]:
    teams = sorted(visit.services.catalog.snapshot.teams.values(), key=lambda team: team.name)
    own = visit.principal.team_id
    teams = [team for team in teams if own in (None, team.id)]
    chosen = own or visit.look.query.get("team_id") or (teams[0].id if teams else None)
    rows: list[Json] = []
    if chosen is not None:
        rows, _ = await visit.api.every(f"/statements/{chosen}")
    closing = await visit.api.get("/statements") if visit.may("GET /admin/v1/statements") else None
    return visit.page("statements", teams=teams, chosen=chosen, rows=list(reversed(rows)), closing=closing)


async def _do(visit: Visit, path: str, body: dict[str, str], form: dict[str, str]) -> Response[Any]:
    try:
        await visit.api.post(path, body)
    except Refused as refused:
        return visit.problem(refused)
    return visit.back("/statements", team_id=form.get("team_id"))
