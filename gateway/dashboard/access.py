"""Who may sign in and call the admin API, and what everybody did."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath

from gateway.admin.roles import Role
from gateway.dashboard.app import Seen, read_form
from gateway.dashboard.inside import Json, Refused
from gateway.dashboard.visit import Visit

PER_PAGE = 50


class AccessController(Controller):
    path = "/"

    @get("/access", include_in_schema=False)
    async def tokens(self, visit: Seen) -> Response[str]:
        return await _tokens_page(visit)

    @post("/access", include_in_schema=False)
    async def create(self, request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        body: Json = {name: form[name] for name in ("name", "role", "team_id", "expires_at") if name in form}
        try:
            made = await visit.api.post("/tokens", body)
        except Refused as refused:
            return visit.problem(refused)
        return await _tokens_page(visit, made)

    @post("/access/{token_id:str}/revoke", include_in_schema=False)
    async def revoke(self, token_id: FromPath[str], visit: Seen) -> Response[Any]:
        try:
            await visit.api.post(f"/tokens/{token_id}/revoke", {})
        except Refused as refused:
            return visit.problem(refused)
        return visit.back("/access")

    @get("/audit", include_in_schema=False)
    async def audit(self, visit: Seen) -> Response[str]:
        query = visit.look.query
        filters = {name: query[name] for name in ("actor", "target") if query.get(name)}
        page = await visit.api.get("/audit", {**filters, "cursor": query.get("cursor"), "limit": PER_PAGE})
        more = page["next_cursor"]
        check = await visit.api.get("/audit/check") if query.get("check") == "yes" else None
        return visit.page(
            "audit",
            rows=page["data"],
            filters=filters,
            check=check,
            next_page=visit.link("/audit", **filters, cursor=more) if more else None,
        )


async def _tokens_page(visit: Visit, made: Json | None = None) -> Response[str]:
    rows, _ = await visit.api.every("/tokens")
    teams = sorted(visit.services.catalog.snapshot.teams.values(), key=lambda team: team.name)
    return visit.page("access", rows=rows, made=made, roles=list(Role), teams=teams)
