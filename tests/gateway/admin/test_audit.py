"""Every admin action leaves one entry, in its own transaction; the chain shows any change; a repeat does nothing twice."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import litestar
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.tables import metadata
from billing.times import HOUR_US, format_time, now_us
from gateway.admin.audit import verify
from gateway.admin.roles import RULES
from gateway.admin.tables import audit_log
from tests.gateway.admin.conftest import ADMIN_KEY, Gateway, Operator
from tests.gateway.admin.test_usage import book, serve

READS_BY_POST = {"POST /admin/v1/what-if", "POST /admin/v1/usage/rerating"}
NEEDS_A_FEED = {"POST /admin/v1/rates/fetch"}


START = "2026-01-01T00:00:00Z"


async def every_write(gateway: Gateway, operator: Operator) -> set[str]:
    """Does each write of the API once, and returns their routes as the log names them."""
    team = await book(operator)
    key = (await operator.post("/keys", {"team_id": team, "name": "ci"}))["id"]
    await operator.patch(f"/teams/{team}", {"name": "find"})
    await operator.patch(f"/keys/{key}", {"name": "cd"})
    await operator.post(f"/keys/{key}/rotate", {}, status=200)
    await operator.post(f"/keys/{key}/revoke", status=200)
    rows = [{"provider": "p", "model": "m", "token_class": "output", "currency": "USD", "amount": "1"}]
    draft = await operator.post("/price-books/drafts", {"prices": rows})
    await operator.post(f"/price-books/drafts/{draft['id']}/publish", {})
    draft = await operator.post("/price-books/drafts", {"prices": [{**rows[0], "model": "n"}]})
    await operator.post(f"/price-books/drafts/{draft['id']}/discard", {})
    await operator.post("/price-books/import", {"prices": [{**rows[0], "model": "o"}]})
    await operator.post("/sell-prices", {"team_id": team, "multiplier": "2"})
    budget = {"scope": "team", "scope_id": team, "amount": "9", "currency": "CNY", "period": "day"}
    budget_id = (await operator.post("/budgets", budget))["id"]
    await operator.post(f"/budgets/{budget_id}/end", status=200)
    await operator.patch(f"/wallets/{team}", {"low_balance": "1"})
    top_up = {"external_id": "e1", "amount": "5", "currency": "CNY", "method": "wire"}
    entry = (await operator.post(f"/wallets/{team}/top-ups", top_up))["id"]
    await operator.post(f"/wallets/{team}/entries/{entry}/reverse", {"reason": "wrong"})
    await operator.post(f"/wallets/{team}/adjustments", {"amount": "7", "reason": "gift"})
    codes = await operator.post("/redemption-codes", {"count": 1, "amount": "5", "currency": "CNY"})
    await operator.post(f"/wallets/{team}/redemptions", {"code": codes["codes"][0]})
    await operator.post(f"/redemption-codes/{codes['id']}/end", status=200)
    request = await serve(gateway, team, key=key)
    await operator.post(f"/usage/requests/{request}/corrections", {"action": "reverse", "reason": "test"})
    await serve(gateway, team, key=key, model="unpriced")
    await operator.post("/prices", {**rows[0], "provider": "deepseek", "model": "unpriced", "effective_from": START})
    span = {"start": format_time(now_us() - HOUR_US), "end": format_time(now_us()), "model": "unpriced"}
    plan = (await operator.post("/usage/rerating", span, status=200))["plan"]
    await operator.post("/usage/rerating/apply", {**span, "plan": plan, "reason": "test"})
    await statements(operator, team)
    token = await operator.post("/tokens", {"name": "t", "role": "viewer"})
    await operator.post(f"/tokens/{token['id']}/revoke", status=200)
    return {route for route in RULES if not route.startswith("GET ")} - READS_BY_POST - NEEDS_A_FEED


async def statements(operator: Operator, team: str) -> None:
    for month in ("2026-01", "2026-02"):
        await operator.post(f"/statements/{team}", {"month": month})
    drafts = (await operator.get(f"/statements/{team}"))["data"]
    await operator.post(f"/statements/{team}/{drafts[1]['id']}/discard", {})
    await operator.post(f"/statements/{team}/{drafts[0]['id']}/issue", {})
    await operator.post(f"/statements/{team}/{drafts[0]['id']}/credit-note", {"reason": "test"})


async def log(operator: Operator, target: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator.get(f"/audit?limit=1000{target and f'&target={target}'}"))["data"]
    return found


async def test_every_write_of_the_api_is_in_the_log_with_what_it_made_and_what_stood_there(
    app: litestar.Litestar, gateway: Gateway, operator: Operator
) -> None:
    writes = await every_write(gateway, operator)
    entries = await log(operator)
    assert {f"{e['action'].replace(' /', ' /admin/v1/', 1)}" for e in entries} == writes
    for entry in entries:
        assert (entry["actor"], entry["role"], entry["address"]) == ("admin", "owner", "127.0.0.1")
        assert entry["after"] is not None, entry["action"]
        changes = entry["action"].startswith("PATCH") or entry["action"].endswith(
            ("/revoke", "/rotate", "/end", "/publish", "/discard", "/issue", "/credit-note", "/corrections")
        )
        assert changes == (entry["before"] is not None), entry["action"]
    renamed = next(e for e in entries if e["action"] == "PATCH /teams/{team_id}")
    assert (renamed["before"]["name"], renamed["after"]["name"]) == ("search", "find")
    assert [e["action"] for e in await log(operator, target=renamed["target"])] == [
        "PATCH /teams/{team_id}",
        "POST /teams",
    ]
    check = await operator.get("/audit/check")
    assert check == {"whole": True, "entries": len(entries), "hash": entries[0]["hash"], "broken": None}


async def test_rule_27_no_secret_that_an_action_made_or_used_is_in_any_table(
    gateway: Gateway, operator: Operator
) -> None:
    team = await operator.team()
    headers = {"idempotency-key": "k1"}
    key = (await operator.post("/keys", {"team_id": team, "name": "ci"}))["key"]
    token = (await operator.post("/tokens", {"name": "t", "role": "viewer"}))["token"]
    code = (await operator.post("/redemption-codes", {"count": 1, "amount": "5", "currency": "CNY"}))["codes"][0]
    body = {"code": code}
    assert (await send(operator, "POST", f"/wallets/{team}/redemptions", body, headers)).status_code == 201
    again = (
        await send(operator, "POST", "/keys", {"team_id": team, "name": "b"}, headers | {"idempotency-key": "k2"})
    ).json()["key"]
    secrets = [ADMIN_KEY, code, *(each.rpartition("-")[2] for each in (key, token, again))]
    async with gateway.database.connect() as connection:
        for table in metadata.tables.values():
            for row in await connection.execute(table.select()):
                assert not any(secret in str(row) for secret in secrets), table.name


async def test_what_was_refused_left_no_entry_and_a_log_that_cannot_be_written_undoes_the_change(
    gateway: Gateway, operator: Operator
) -> None:
    await operator.team()
    await operator.refused("/teams", {"name": "search", "settlement_currency": "CNY"}, status=409)
    assert len(await log(operator)) == 1
    async with gateway.database.begin() as connection:
        await connection.execute(text("UPDATE audit_head SET sequence = 0"))  # the next entry's number is taken
    await operator.post("/teams", {"name": "ads", "settlement_currency": "CNY"}, status=500)
    assert [team["name"] for team in (await operator.get("/teams"))["data"]] == ["search"]


async def test_the_database_refuses_to_change_or_remove_an_entry(gateway: Gateway, operator: Operator) -> None:
    await operator.team()
    statements = ["UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log"]
    if gateway.database.dialect.name == "postgresql":
        statements.append("TRUNCATE audit_log")
    for statement in statements:
        async with gateway.database.connect() as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                await connection.execute(text(statement))


async def test_whoever_gets_round_the_database_is_found_by_the_chain(gateway: Gateway, operator: Operator) -> None:
    for number in range(4):
        await operator.team(f"t{number}")
    async with gateway.database.begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("ALTER TABLE audit_log DISABLE TRIGGER ALL"))
        else:
            for event in ("update", "delete"):
                await connection.execute(text(f"DROP TRIGGER audit_log_no_{event}"))
    rows = audit_log.c
    for change, found in (
        (audit_log.update().where(rows.sequence == 2).values(actor="nobody"), "entry 2 is not what was written"),
        (audit_log.update().where(rows.sequence == 3).values(previous="0" * 64), "entry 3 does not follow the hash"),
        (audit_log.delete().where(rows.sequence == 4), "the log ends at entry 3, but entry 4 was written"),
        (audit_log.delete().where(rows.sequence == 1), "entry 1 is missing"),
    ):
        async with gateway.database.connect() as connection:
            await connection.execute(change)
            assert found in str((await verify(connection)).broken)
            await connection.rollback()
    assert (await operator.get("/audit/check"))["whole"] is True


async def test_parallel_writes_make_one_chain(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    body = {"amount": "1", "reason": "r"}
    await asyncio.gather(
        *(operator.post(f"/wallets/{team}/adjustments", body) for _ in range(6)),
        *(operator.team(f"t{number}") for number in range(6)),
    )
    check = await operator.get("/audit/check")
    assert (check["whole"], check["entries"]) == (True, 13)


async def send(operator: Operator, method: str, path: str, body: object, headers: dict[str, str]) -> httpx.Response:
    headers = {"authorization": operator.authorization, **headers}
    return await operator.client.request(method, f"/admin/v1{path}", json=body, headers=headers)


async def test_a_write_that_is_said_again_under_its_idempotency_key_is_done_once_and_answered_alike(
    operator: Operator,
) -> None:
    body = {"name": "search", "settlement_currency": "CNY"}
    headers = {"idempotency-key": "first"}
    answers = await asyncio.gather(*(send(operator, "POST", "/teams", body, headers) for _ in range(4)))
    created = next(a for a in answers if "idempotent-replayed" not in a.headers)
    for answer in answers:
        assert (answer.status_code, answer.json()) == (201, created.json())
    assert len(await log(operator)) == 1
    other = await send(operator, "POST", "/teams", {**body, "name": "ads"}, headers)
    assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")
    assert (
        await send(operator, "POST", "/teams", {**body, "name": "ads"}, {"idempotency-key": "k" * 201})
    ).status_code == 422
    team = created.json()["id"]
    adjust = {"amount": "1", "reason": "r"}
    for _ in range(3):
        answer = await send(operator, "POST", f"/wallets/{team}/adjustments", adjust, {"idempotency-key": "2nd"})
        assert answer.status_code == 201
    assert (await operator.get(f"/wallets/{team}"))["balance"] == "1"


async def test_a_secret_is_not_kept_to_be_shown_again(operator: Operator) -> None:
    body = {"team_id": await operator.team(), "name": "ci"}
    made = await send(operator, "POST", "/keys", body, {"idempotency-key": "k"})
    again = await send(operator, "POST", "/keys", body, {"idempotency-key": "k"})
    assert (made.status_code, again.status_code) == (201, 409)
    assert made.json()["id"] in again.json()["error"]["message"]
    assert made.json()["key"] not in again.text
    assert len((await operator.get("/keys"))["data"]) == 1


async def test_an_edit_of_what_somebody_changed_meanwhile_is_refused(operator: Operator) -> None:
    team = await operator.team()
    key = (await operator.post("/keys", {"team_id": team, "name": "ci"}))["id"]
    for path, first, second in (
        (f"/teams/{team}", {"name": "a"}, {"name": "b"}),
        (f"/keys/{key}", {"name": "a"}, {"name": "b"}),
        (f"/wallets/{team}", {"low_balance": "1"}, {"low_balance": "2"}),
    ):
        read = await send(operator, "GET", path, None, {})
        mine = {"if-match": read.headers["etag"]}
        changed = await send(operator, "PATCH", path, first, mine)
        assert changed.status_code == 200
        late = await send(operator, "PATCH", path, second, mine)
        assert (late.status_code, late.json()["error"]["code"]) == (412, "changed_meanwhile")
        assert changed.headers["etag"] in late.json()["error"]["message"]
        now = await send(operator, "GET", path, None, {})
        assert (now.headers["etag"], now.json()) == (changed.headers["etag"], changed.json())
        assert (await send(operator, "PATCH", path, second, {"if-match": now.headers["etag"]})).status_code == 200
