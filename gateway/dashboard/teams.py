"""Teams and their keys: create, limit, rotate, revoke; and their budgets."""

from __future__ import annotations

from typing import Any, Final

from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath

from gateway.dashboard.app import Seen, read_form, whole
from gateway.dashboard.budget_lines import budget_lines
from gateway.dashboard.inside import Json, Refused
from gateway.dashboard.visit import Visit

LIMITS: Final = ("requests_per_minute", "tokens_per_minute", "max_parallel")


class TeamsController(Controller):
    path = "/teams"

    @get("/", include_in_schema=False)
    async def index(self, visit: Seen) -> Response[Any]:
        if visit.principal.team_id is not None:
            return visit.back(f"/teams/{visit.principal.team_id}")
        rows, whole = await visit.api.every("/teams")
        keys: dict[str, set[str]] = {}
        for key in visit.services.catalog.snapshot.keys.values():
            keys.setdefault(key.team_id, set()).add(key.key_id)
        return visit.page("teams", rows=rows, whole=whole, keys={team: len(each) for team, each in keys.items()})

    @post("/", include_in_schema=False)
    async def create(self, request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        body = _only(form, "name", "settlement_currency", "billing", "credit_limit", "timezone")
        try:
            team = await visit.api.post("/teams", body)
        except Refused as refused:
            return visit.problem(refused)
        return visit.back(f"/teams/{team['id']}")

    @get("/{team_id:str}", include_in_schema=False)
    async def one(self, team_id: FromPath[str], visit: Seen) -> Response[str]:
        return await _team_page(visit, team_id)

    @post("/{team_id:str}", include_in_schema=False)
    async def change(self, team_id: FromPath[str], request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        body: Json = _only(form, "name", "billing", "lost_charge", "timezone")
        body["credit_limit"] = form.get("credit_limit")
        return await _done(visit, visit.api.patch(f"/teams/{team_id}", body), f"/teams/{team_id}")

    @post("/{team_id:str}/keys", include_in_schema=False)
    async def create_key(self, team_id: FromPath[str], request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        body: Json = {"team_id": team_id, **_only(form, "name", "expires_at"), **_policy(form)}
        try:
            made = await visit.api.post("/keys", body)
        except Refused as refused:
            return visit.problem(refused)
        return await _team_page(visit, team_id, made)

    @post("/{team_id:str}/keys/{key_id:str}", include_in_schema=False)
    async def change_key(
        self, team_id: FromPath[str], key_id: FromPath[str], request: Request[Any, Any, Any], visit: Seen
    ) -> Response[Any]:
        form = await read_form(request)
        body = {**_only(form, "name"), **_policy(form)}
        return await _done(visit, visit.api.patch(f"/keys/{key_id}", body), f"/teams/{team_id}")

    @post("/{team_id:str}/keys/{key_id:str}/rotate", include_in_schema=False)
    async def rotate(self, team_id: FromPath[str], key_id: FromPath[str], visit: Seen) -> Response[Any]:
        try:
            made = await visit.api.post(f"/keys/{key_id}/rotate", {})
        except Refused as refused:
            return visit.problem(refused)
        return await _team_page(visit, team_id, made)

    @post("/{team_id:str}/keys/{key_id:str}/revoke", include_in_schema=False)
    async def revoke(self, team_id: FromPath[str], key_id: FromPath[str], visit: Seen) -> Response[Any]:
        return await _done(visit, visit.api.post(f"/keys/{key_id}/revoke", {}), f"/teams/{team_id}")

    @post("/{team_id:str}/budgets", include_in_schema=False)
    async def create_budget(
        self, team_id: FromPath[str], request: Request[Any, Any, Any], visit: Seen
    ) -> Response[Any]:
        form = await read_form(request)
        scope = form.get("scope_id", team_id)
        body: Json = {
            "scope": "team" if scope == team_id else "key",
            "scope_id": scope,
            "hard": form.get("hard") == "yes",
            **_only(form, "amount", "currency", "period", "timezone"),
        }
        return await _done(visit, visit.api.post("/budgets", body), f"/teams/{team_id}")

    @post("/{team_id:str}/budgets/{budget_id:int}/end", include_in_schema=False)
    async def end_budget(self, team_id: FromPath[str], budget_id: FromPath[int], visit: Seen) -> Response[Any]:
        return await _done(visit, visit.api.post(f"/budgets/{budget_id}/end", {}), f"/teams/{team_id}")


async def _team_page(visit: Visit, team_id: str, made: Json | None = None) -> Response[str]:
    """`made` is a key that was just made: this answer is the only one that ever shows it."""
    team = await visit.api.get(f"/teams/{team_id}")
    keys, _ = await visit.api.every("/keys", {"team_id": team_id})
    wallet = await visit.api.get(f"/wallets/{team_id}")
    return visit.page(
        "team",
        team=team,
        keys=sorted(keys, key=lambda key: key["revoked_at"] or ""),
        wallet=wallet,
        made=made,
        key_names={key["id"]: key["name"] for key in keys},
        budgets=await budget_lines(visit.services, team_id),
        models=sorted(model.name for model in visit.services.router.models()),
    )


async def _done(visit: Visit, change: Any, path: str) -> Response[Any]:
    try:
        await change
    except Refused as refused:
        return visit.problem(refused)
    return visit.back(path)


def _only(form: dict[str, str], *names: str) -> Json:
    return {name: form[name] for name in names if name in form}


def _policy(form: dict[str, str]) -> Json:
    """Limits and models; an empty field is no limit, no model is all of them. What is no number stays a text: the API says so."""
    limits = {name: whole(form[name]) for name in LIMITS if name in form}
    models = [each.strip() for each in form.get("models", "").split(",") if each.strip()]
    ips = [each.strip() for each in form.get("allowed_ips", "").split(",") if each.strip()]
    return {"limits": limits or None, "models": models or None, "allowed_ips": ips or None}
