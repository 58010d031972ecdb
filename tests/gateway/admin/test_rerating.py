"""A range rated again over the admin API: a look that writes nothing, then exactly that, once."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from billing.bulk_rerating import apply_rerating
from gateway.admin import rerating
from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.admin.test_statements import use, used

RANGE = {"start": "2026-09-01T00:00:00Z", "end": "2026-10-01T00:00:00Z"}


async def test_a_range_is_looked_at_applied_and_audited(gateway: Gateway, operator: Operator) -> None:
    team_id = await used(gateway, operator)
    await use(gateway, team_id, 1_000_000)
    assert (await operator.ask("POST", "/usage/rerating", RANGE))["changed"] == 0
    price = {"provider": "deepseek", "model": "deepseek-chat", "token_class": "output", "currency": "USD"}
    await operator.post("/prices", price | {"amount_per_mtok": "0.84", "effective_from": "2026-09-02T00:00:00Z"})
    seen: dict[str, Any] = await operator.ask("POST", "/usage/rerating", {**RANGE, "team_id": team_id})
    assert (seen["requests"], seen["changed"], seen["data"][0]["difference"][0]["amount"]) == (2, 2, "4.62")
    body = {**RANGE, "plan": seen["plan"], "reason": "wrong price", "actor": "ann"}
    field, _ = await operator.refused("/usage/rerating/apply", body, status=409)
    assert field == "plan", "it was another range"
    done = await operator.post("/usage/rerating/apply", {**body, "team_id": team_id})
    assert (done["corrected"], done["skipped"]) == (2, 0)
    await operator.refused("/usage/rerating/apply", {**body, "team_id": team_id}, status=409)
    wallet = await operator.get(f"/wallets/{team_id}/check")
    assert (wallet["agrees"], wallet["balance"]) == (True, "-9.24")
    entry = next(each for each in (await operator.get("/audit"))["data"] if "rerating" in each["action"])
    assert '"corrected":2' in str(entry["after"]).replace(" ", "").replace("'", '"')


async def looked_at(gateway: Gateway, operator: Operator, requests: int) -> dict[str, Any]:
    """The body of an apply: so many requests at 0.42, whose price turns out to be 0.84."""
    team_id = await used(gateway, operator, 1_000_000)
    for _ in range(requests - 1):
        await use(gateway, team_id, 1_000_000)
    price = {"provider": "deepseek", "model": "deepseek-chat", "token_class": "output", "currency": "USD"}
    await operator.post("/prices", price | {"amount_per_mtok": "0.84", "effective_from": "2026-09-02T00:00:00Z"})
    span = {**RANGE, "team_id": team_id}
    return span | {"plan": (await operator.ask("POST", "/usage/rerating", span))["plan"], "reason": "wrong price"}


async def applied(operator: Operator, body: dict[str, Any], key: str) -> httpx.Response:
    return await operator.client.post(
        "/admin/v1/usage/rerating/apply",
        json=body,
        headers={"authorization": operator.authorization, "idempotency-key": key},
    )


async def corrected(gateway: Gateway) -> int:
    async with gateway.database.connect() as connection:
        return int(await connection.scalar(text("SELECT COUNT(*) FROM corrections")) or 0)


async def entries(operator: Operator) -> list[dict[str, Any]]:
    """What the log says was done by applying, oldest first."""
    found = (await operator.get("/audit"))["data"]
    return [each["after"] for each in reversed(found) if each["action"].endswith("/rerating/apply")]


async def test_the_key_is_looked_at_before_any_money_moves(gateway: Gateway, operator: Operator) -> None:
    body = await looked_at(gateway, operator, 2)
    await operator.client.post(
        "/admin/v1/teams",
        json={"name": "other", "settlement_currency": "CNY"},
        headers={"authorization": operator.authorization, "idempotency-key": "k1"},
    )
    refused = await applied(operator, body, "k1")
    assert (refused.status_code, await corrected(gateway), await entries(operator)) == (422, 0, [])
    first = await applied(operator, body, "k2")
    assert (first.status_code, first.json()["corrected"]) == (201, 2)
    again = await applied(operator, body, "k2")
    assert (again.status_code, again.json()) == (201, first.json()), "said again, it is answered again"
    assert (await applied(operator, {**body, "reason": "another"}, "k2")).status_code == 422
    assert (await corrected(gateway), len(await entries(operator))) == (2, 1)


async def test_whatever_was_corrected_is_in_the_log_wherever_it_was_broken_off(
    gateway: Gateway, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await looked_at(gateway, operator, 5)
    monkeypatch.setattr(rerating, "ROWS_AT_ONCE", 2)
    whole, calls = apply_rerating, itertools.count()

    async def broken_off(*arguments: Any, **named: Any) -> int:
        done = await whole(*arguments, **named)
        if next(calls) == 2:
            raise ConnectionResetError
        return done

    monkeypatch.setattr(rerating, "apply_rerating", broken_off)
    assert (await applied(operator, body, "k1")).status_code == 503
    assert await corrected(gateway) == 4
    assert [(each["plan"], each["corrected"]) for each in await entries(operator)] == [
        (body["plan"], 2),
        (body["plan"], 4),
    ]
    body["plan"] = (await operator.ask("POST", "/usage/rerating", {**RANGE, "team_id": body["team_id"]}))["plan"]
    rest = await applied(operator, body, "k1")
    assert (rest.status_code, rest.json()["corrected"], await corrected(gateway)) == (201, 1, 5)
    assert [each["corrected"] for each in await entries(operator)] == [2, 4, 1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"start": "yesterday"}, "start"),
        ({"end": "2026-08-01T00:00:00Z"}, "end"),
        ({"end": "2027-08-01T00:00:00Z"}, "end"),
    ],
)
async def test_a_range_that_cannot_be_names_its_field(operator: Operator, change: dict[str, str], field: str) -> None:
    assert (await operator.refused("/usage/rerating", RANGE | change))[0] == field
