"""A range rated again over the admin API: a look that writes nothing, then exactly that, once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.admin.test_statements import use, used


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


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
