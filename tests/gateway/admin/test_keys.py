from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from billing.tables import metadata
from gateway.access.identity import Identity
from gateway.errors import ApiError
from tests.gateway.admin.conftest import Gateway, Operator


def identify(gateway: Gateway, key: str, address: str = "203.0.113.9") -> Identity:
    return gateway.authenticator.identify([(b"authorization", f"Bearer {key}".encode())], address)


def refusal(gateway: Gateway, key: str, address: str = "203.0.113.9") -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        identify(gateway, key, address)
    return caught.value.status, caught.value.message


async def test_a_key_is_created_shown_once_and_works_at_once(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    created = await operator.post(
        "/keys",
        {
            "team_id": team,
            "name": "ci",
            "models": ["deepseek-chat"],
            "expires_at": None,
            "limits": {"requests_per_minute": 60, "tokens_per_minute": 100000, "max_parallel": 8},
            "allowed_ips": ["203.0.113.0/24"],
            "tags": {"project": "búsqueda"},
        },
    )
    key = created.pop("key")
    assert key.startswith(f"sk-mg-{created['public_id']}-")
    identity = identify(gateway, key)
    assert (identity.key_id, identity.team_id, identity.settlement_currency) == (created["id"], team, "CNY")
    assert identity.models == frozenset({"deepseek-chat"})
    assert (identity.limits.requests_per_minute, identity.limits.max_parallel) == (60, 8)
    assert dict(identity.tags) == {"project": "búsqueda"}
    shown = await operator.get(f"/keys/{created['id']}")
    created.pop("former_works_until")
    assert created.pop("warnings") == []
    assert shown == created
    assert shown["limits"] == {"requests_per_minute": 60, "tokens_per_minute": 100000, "max_parallel": 8}
    assert key not in str(await operator.get("/keys"))


async def test_rule_27_no_table_holds_a_key_or_its_secret(gateway: Gateway, operator: Operator) -> None:
    key = (await operator.post("/keys", {"team_id": await operator.team(), "name": "ci"}))["key"]
    secret = key.rpartition("-")[2]
    async with gateway.database.connect() as connection:
        for table in metadata.tables.values():
            for row in await connection.execute(table.select()):
                assert secret not in str(row), table.name


async def test_rule_08_null_means_no_restriction_and_an_empty_list_allows_nothing(
    gateway: Gateway, operator: Operator
) -> None:
    team = await operator.team()
    free = identify(gateway, (await operator.post("/keys", {"team_id": team, "name": "a"}))["key"])
    assert (free.models, free.allowed_ips, free.limits.max_parallel) == (None, None, None)
    barred = await operator.post(
        "/keys", {"team_id": team, "name": "b", "models": [], "allowed_ips": [], "limits": {"max_parallel": 0}}
    )
    assert refusal(gateway, barred["key"]) == (403, "This key may not be used from this address.")
    await operator.patch(f"/keys/{barred['id']}", {"allowed_ips": None})
    identity = identify(gateway, barred["key"])
    assert identity.models == frozenset()
    assert identity.limits.max_parallel == 0


async def test_rule_28_a_revoked_key_stops_at_once_and_no_edit_brings_it_back(
    gateway: Gateway, operator: Operator
) -> None:
    created = await operator.post("/keys", {"team_id": await operator.team(), "name": "ci"})
    revoked = await operator.post(f"/keys/{created['id']}/revoke", status=200)
    assert revoked["revoked_at"] is not None
    assert refusal(gateway, created["key"])[0] == 401
    assert (await operator.post(f"/keys/{created['id']}/revoke", status=200))["revoked_at"] == revoked["revoked_at"]
    for path, method in ((f"/keys/{created['id']}", "PATCH"), (f"/keys/{created['id']}/rotate", "POST")):
        _, message = await operator.refused(path, {}, status=409, method=method)
        assert message == f"The key {created['id']} is revoked, for good; create a new one."


async def test_rule_28_edits_in_flight_never_undo_a_revocation(gateway: Gateway, operator: Operator) -> None:
    created = await operator.post("/keys", {"team_id": await operator.team(), "name": "ci"})
    path = f"/admin/v1/keys/{created['id']}"
    headers = {"authorization": operator.authorization}

    async def edit(number: int) -> int:
        return (await operator.client.patch(path, json={"name": f"n{number}"}, headers=headers)).status_code

    async def revoke() -> int:
        return (await operator.client.post(f"{path}/revoke", headers=headers)).status_code

    statuses = await asyncio.gather(*map(edit, range(6)), revoke(), *map(edit, range(6, 12)))
    assert set(statuses) <= {200, 409}
    assert refusal(gateway, created["key"])[0] == 401


async def test_rotating_keeps_the_id_and_lets_the_former_secret_end_after_its_grace(
    gateway: Gateway, operator: Operator
) -> None:
    created = await operator.post("/keys", {"team_id": await operator.team(), "name": "ci", "tags": {"a": "b"}})
    rotated = await operator.post(f"/keys/{created['id']}/rotate", {"grace_period_s": 3600}, status=200)
    assert (rotated["id"], rotated["public_id"], rotated["tags"]) == (created["id"], created["public_id"], {"a": "b"})
    assert rotated["key"] != created["key"]
    old, new = identify(gateway, created["key"]), identify(gateway, rotated["key"])
    assert old.key_id == new.key_id == created["id"]
    assert new.expires_at_us is None
    assert old.expires_at_us is not None
    third = await operator.post(f"/keys/{created['id']}/rotate", {"grace_period_s": 0}, status=200)
    for key in (created["key"], rotated["key"]):
        assert refusal(gateway, key) == (401, "This API key has expired. Ask your operator for a new one.")
    assert identify(gateway, third["key"]).key_id == created["id"]


async def test_a_rotation_without_a_body_gives_a_day(gateway: Gateway, operator: Operator) -> None:
    created = await operator.post("/keys", {"team_id": await operator.team(), "name": "ci"})
    rotated = await operator.post(f"/keys/{created['id']}/rotate", status=200)
    assert rotated["former_works_until"] is not None
    assert identify(gateway, created["key"]).key_id == created["id"]


async def test_an_expired_key_is_refused(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    created = await operator.post("/keys", {"team_id": team, "name": "ci", "expires_at": "2026-01-01T08:00:00+08:00"})
    assert created["expires_at"] == "2026-01-01T00:00:00Z"
    assert refusal(gateway, created["key"])[0] == 401


async def test_a_patch_changes_what_it_names_and_nothing_else(gateway: Gateway, operator: Operator) -> None:
    body = {
        "team_id": await operator.team(),
        "name": "ci",
        "models": ["m"],
        "limits": {"max_parallel": 3},
        "tags": {"a": "b"},
    }
    created = await operator.post("/keys", body)
    changed = await operator.patch(f"/keys/{created['id']}", {"name": "cd", "limits": {"requests_per_minute": 5}})
    assert (changed["name"], changed["models"], changed["tags"]) == ("cd", ["m"], {"a": "b"})
    assert changed["limits"] == {"requests_per_minute": 5, "tokens_per_minute": None, "max_parallel": None}
    identity = identify(gateway, created["key"])
    assert (identity.key_name, identity.limits.requests_per_minute) == ("cd", 5)
    assert (await operator.patch(f"/keys/{created['id']}", {"models": None}))["models"] is None


async def test_rule_33_keys_page_by_cursor_and_every_key_comes_once(operator: Operator) -> None:
    teams = [await operator.team(f"t{number}") for number in range(2)]
    made = [
        (await operator.post("/keys", {"team_id": teams[number % 2], "name": f"k{number}"}))["id"]
        for number in range(7)
    ]
    seen: list[str] = []
    path = "/keys?limit=3"
    pages = 0
    while True:
        page = await operator.get(path)
        seen += [key["id"] for key in page["data"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        path = f"/keys?limit=3&cursor={page['next_cursor']}"
    assert seen == made
    assert pages == 3
    assert [key["id"] for key in (await operator.get("/keys", team_id=teams[1]))["data"]] == made[1::2]


async def test_a_refused_creation_leaves_no_key(gateway: Gateway, operator: Operator) -> None:
    await operator.refused("/keys", {"team_id": "team_nobody", "name": "ci"})
    async with gateway.database.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM api_keys")) == 0


async def test_an_unknown_key_is_a_404(operator: Operator) -> None:
    for method, path in (
        ("GET", "/keys/key_x"),
        ("PATCH", "/keys/key_x"),
        ("POST", "/keys/key_x/revoke"),
        ("POST", "/keys/key_x/rotate"),
    ):
        answer = await operator.ask(method, path, None if method == "GET" else {}, status=404)
        assert answer["error"]["message"] == "There is no key key_x."


async def test_a_key_for_a_model_that_nobody_serves_is_made_with_a_warning(operator: Operator) -> None:
    team = await operator.team()
    body = {"team_id": team, "name": "ci", "models": ["deepseek-chat", "deepsek-chat"]}
    created = await operator.post("/keys", {**body, "model_limits": {"gpt": {"max_parallel": 1}}})
    assert created["warnings"] == [
        "models: no model 'deepsek-chat' is configured; there is deepseek-chat",
        "model_limits: no model 'gpt' is configured; there is deepseek-chat",
    ]
    assert (await operator.post("/keys", {"team_id": team, "name": "any"}))["warnings"] == []
