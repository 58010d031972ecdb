"""Every route with every role: what the table says is what happens, and a team admin sees one team."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import httpx
import litestar
import pytest
from litestar.routes import HTTPRoute
from msgspec import structs

from billing.ledger import record
from billing.money import Money
from billing.usage import Usage
from gateway.admin.roles import RULES, Role
from tests.billing.helpers import rated_record
from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.admin.test_usage import book, serve


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@dataclass(frozen=True, slots=True)
class Team:
    """What a team owns: whatever of it another team's admin asks for must look as if it were not there."""

    id: str
    key: str
    request: str
    budget: int


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def token_for(operator: Operator, role: Role, team: str | None = None) -> str:
    body: dict[str, Any] = {"name": f"the {role}", "role": role}
    created = await operator.post("/tokens", body if team is None else {**body, "team_id": team})
    token = created["token"]
    assert isinstance(token, str)
    return token


async def two_teams(gateway: Gateway, operator: Operator) -> tuple[Team, Team]:
    found: list[Team] = []
    for team in (await book(operator), await operator.team("ads")):
        if found:
            body = {"team_id": team, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY"}
            await operator.post("/terms", {**body, "effective_from": "2026-01-01T00:00:00Z"})
        key = (await operator.post("/keys", {"team_id": team, "name": "ci"}))["id"]
        budget = {"scope": "team", "scope_id": team, "amount": "5", "currency": "CNY", "period": "month"}
        over_team = (await operator.post("/budgets", budget))["id"]
        await operator.post("/budgets", {**budget, "scope": "key", "scope_id": key})
        found.append(Team(team, key, str(await serve(gateway, team, key=key)), over_team))
        await operator.post(f"/wallets/{team}/adjustments", {"amount": "7", "reason": "test"})
    return found[0], found[1]


def templates(app: litestar.Litestar) -> list[str]:
    """Every route as `RULES` names it."""
    return [
        f"{method} {route.path_format}"
        for route in app.routes
        if isinstance(route, HTTPRoute) and route.path.startswith(("/admin/", "/v1/organization"))
        for method in sorted(route.methods)
        if method != "OPTIONS"
    ]


def concrete(template: str, team: Team) -> tuple[str, str]:
    """The method and a path of that route which names this team's things."""
    method, _, path = template.partition(" ")
    named = {"team_id": team.id, "key_id": team.key, "request_id": team.request, "budget_id": str(team.budget)}
    for name, value in named.items():
        path = path.replace(f"{{{name}}}", value)
    return method, re.sub(r"\{[^}]*\}", "1", path)


async def test_the_table_names_every_route_and_no_other(app: litestar.Litestar) -> None:
    assert sorted(RULES) == sorted(templates(app))


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.TEAM_ADMIN])
async def test_rule_29_each_role_passes_exactly_the_routes_that_the_table_gives_it(
    app: litestar.Litestar, client: httpx.AsyncClient, gateway: Gateway, operator: Operator, role: Role
) -> None:
    team, _ = await two_teams(gateway, operator)
    headers = bearer(await token_for(operator, role))
    for template in templates(app):
        method, path = concrete(template, team)
        answer = await client.request(method, path, headers=headers, json={"unknown field": 1})
        refused = answer.status_code == 403
        assert refused != RULES[template].allows(role), f"{role} {template}: {answer.status_code} {answer.text}"
        assert answer.status_code < 500, answer.text
        if refused:
            assert answer.json()["error"]["code"] == "role_not_allowed"


async def test_rule_29_a_team_admin_sees_nothing_of_another_team_by_path_query_or_body_on_any_route(
    app: litestar.Litestar, client: httpx.AsyncClient, gateway: Gateway, operator: Operator
) -> None:
    mine, theirs = await two_teams(gateway, operator)
    headers = bearer(await token_for(operator, Role.TEAM_ADMIN, mine.id))
    opened = []
    for template in templates(app):
        method, path = concrete(template, theirs)
        rule = RULES[template]
        asks: list[tuple[str, object]] = [(path, {"team_id": theirs.id, "name": "x", "code": "x"})]
        if rule.team in ("query", "projects"):
            name = "team_id" if rule.team == "query" else "project_ids"
            asks += [(f"{path}?{name}={theirs.id}", None), (f"{path}?{name}={mine.id}&{name}={theirs.id}", None)]
            asks += [(f"{path}?{name}={theirs.id}&{name}={mine.id}", None), (f"{path}?key_id={theirs.key}", None)]
        for asked, body in asks:
            answer = await client.request(method, asked, headers=headers, json=body)
            if rule.team == "none":
                assert answer.status_code == 200
            else:
                assert answer.status_code in (403, 404), f"{method} {asked}: {answer.status_code} {answer.text}"
            words = answer.text.replace(mine.id, "")
            if rule.team not in ("path", "key", "request", "budget"):  # those repeat the id that was asked for
                for secret in (theirs.id, theirs.key, theirs.request):
                    assert secret not in words, f"{method} {asked}"
        if rule.team is not None:
            opened.append(template)
    assert len(opened) >= 14


async def test_what_another_team_owns_looks_like_what_nobody_owns(
    client: httpx.AsyncClient, gateway: Gateway, operator: Operator
) -> None:
    mine, theirs = await two_teams(gateway, operator)
    headers = bearer(await token_for(operator, Role.TEAM_ADMIN, mine.id))
    nobodys = "0" * 8 + theirs.request[8:]
    for method, path, there, nowhere in (
        ("GET", "/teams/{}", theirs.id, "team_nobody"),
        ("GET", "/keys/{}", theirs.key, "key_nobody"),
        ("PATCH", "/keys/{}", theirs.key, "key_nobody"),
        ("POST", "/keys/{}/revoke", theirs.key, "key_nobody"),
        ("GET", "/usage/requests/{}", theirs.request, nobodys),
        ("GET", "/budgets/{}", str(theirs.budget), "999"),
        ("GET", "/wallets/{}/entries", theirs.id, "team_nobody"),
    ):
        answers = []
        for each in (there, nowhere):
            answer = await client.request(method, f"/admin/v1{path.format(each)}", headers=headers, json={})
            answers.append((answer.status_code, answer.text.replace(each, "…")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404


async def test_a_team_admin_works_with_the_keys_of_their_team_and_reads_its_usage_without_our_cost(
    client: httpx.AsyncClient, gateway: Gateway, operator: Operator
) -> None:
    mine, theirs = await two_teams(gateway, operator)
    headers = bearer(await token_for(operator, Role.TEAM_ADMIN, mine.id))
    body = {"team_id": mine.id, "name": "laptop"}
    made = await client.post("/admin/v1/keys", headers=headers, json=body)
    assert made.status_code == 201
    key = made.json()["id"]
    assert (await client.patch(f"/admin/v1/keys/{key}", headers=headers, json={"name": "desk"})).status_code == 200
    assert (await client.post(f"/admin/v1/keys/{key}/rotate", headers=headers, json={})).status_code == 200
    listed = (await client.get("/admin/v1/keys", headers=headers, params={"team_id": mine.id})).json()["data"]
    assert {each["team_id"] for each in listed} == {mine.id}
    doubled = b'{"team_id":"%s","name":"x","team_id":"%s"}' % (mine.id.encode(), theirs.id.encode())
    for content in (doubled, doubled.replace(b'"team_id"', b'"\\u0074eam_id"')):
        answer = await client.post(
            "/admin/v1/keys", headers={**headers, "content-type": "application/json"}, content=content
        )
        assert answer.status_code == 403

    one = (await client.get(f"/admin/v1/usage/requests/{mine.request}", headers=headers)).json()
    (bucket,) = (await client.get("/admin/v1/usage", headers=headers, params={"team_id": mine.id})).json()["data"]
    assert (one["settled"]["amount"], bucket["settled"][0]["amount"]) == ("0.42", "0.42")
    assert (one["cost"], one["margin"], bucket["cost"], bucket["margin"]) == (None, None, [], [])
    assert [(each["cost"], each["price_rows"]) for each in one["attempts"]] == [(None, [])]
    asked = {"team_id": mine.id, "negative_margin": "true"}
    assert (await client.get("/admin/v1/usage/requests", headers=headers, params=asked)).status_code == 422


async def test_a_team_admin_reads_the_budgets_over_their_team_and_its_keys_and_no_others(
    client: httpx.AsyncClient, gateway: Gateway, operator: Operator
) -> None:
    mine, theirs = await two_teams(gateway, operator)
    everybody = {"scope": "all", "amount": "9", "currency": "CNY", "period": "day"}
    over_all = (await operator.post("/budgets", everybody))["id"]
    headers = bearer(await token_for(operator, Role.TEAM_ADMIN, mine.id))
    listed = (await client.get("/admin/v1/budgets", headers=headers, params={"team_id": mine.id})).json()["data"]
    assert [(each["scope"], each["scope_id"]) for each in listed] == [("team", mine.id), ("key", mine.key)]
    for each in listed:
        one = await client.get(f"/admin/v1/budgets/{each['id']}", headers=headers)
        assert (one.status_code, one.json()) == (200, each)
        assert (await client.post(f"/admin/v1/budgets/{each['id']}/end", headers=headers)).status_code == 403
    everything = (await operator.get("/budgets"))["data"]
    others = {each["id"] for each in everything} - {each["id"] for each in listed}
    assert over_all in others and theirs.budget in others and len(others) == 3
    for identifier in others:
        assert (await client.get(f"/admin/v1/budgets/{identifier}", headers=headers)).status_code == 404
    assert {each["id"] for each in (await operator.get("/budgets", team_id=theirs.id))["data"]} < others


async def test_an_engine_s_time_and_what_an_hour_of_it_costs_are_our_cost_in_other_words(
    client: httpx.AsyncClient, gateway: Gateway, operator: Operator
) -> None:
    mine, _ = await two_teams(gateway, operator)
    headers = bearer(await token_for(operator, Role.TEAM_ADMIN, mine.id))
    made = rated_record(Usage(output=5), team=mine.id)
    hour = Money.parse("987.654321", "USD")
    attempt = structs.replace(made.attempts[0], usage=Usage(output=5, compute_us=123_456_789), cost_per_hour=hour)
    async with gateway.database.begin() as connection:
        await record(connection, [structs.replace(made, attempts=(attempt,))])
    path = f"/usage/requests/{made.id}"
    ours = await operator.get(path)
    assert (ours["attempts"][0]["cost_per_hour"]["amount"], ours["attempts"][0]["tokens"]["compute_us"]) == (
        hour.amount,
        123_456_789,
    )
    for asked in (path, f"/usage/requests?team_id={mine.id}"):
        shown = (await client.get(f"/admin/v1{asked}", headers=headers)).text
        assert str(made.id) in shown
        assert not any(secret in shown for secret in ("987.654321", "123456789", "compute_us"))


async def test_a_token_is_shown_once_stored_as_a_hash_and_stops_when_revoked_or_expired(
    client: httpx.AsyncClient, gateway: Gateway, operator: Operator
) -> None:
    created = await operator.post("/tokens", {"name": "reader", "role": "viewer"})
    headers = bearer(created["token"])
    me = await client.get("/admin/v1/me", headers=headers)
    assert me.json() == {"name": "reader", "role": "viewer", "team_id": None}
    shown = await operator.get(f"/tokens/{created['id']}")
    assert "token" not in shown
    assert (await operator.get("/tokens"))["data"] == [shown]
    assert (await operator.post(f"/tokens/{created['id']}/revoke", status=200))["revoked_at"] is not None
    assert (await client.get("/admin/v1/me", headers=headers)).status_code == 401
    ended = await operator.post("/tokens", {"name": "late", "role": "viewer", "expires_at": "2026-01-01T00:00:00Z"})
    assert (await client.get("/admin/v1/me", headers=bearer(ended["token"]))).status_code == 401
    for body, field in (
        ({"name": "x", "role": "king"}, "role"),
        ({"name": "x", "role": "team_admin"}, "team_id"),
        ({"name": "x", "role": "viewer", "team_id": "team_x"}, "team_id"),
        ({"name": "x", "role": "team_admin", "team_id": "team_x"}, "team_id"),
    ):
        assert (await operator.refused("/tokens", body))[0] == field
