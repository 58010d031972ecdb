"""Questions to the past over the admin API: what-if tables and the break-even of an engine."""

from __future__ import annotations

from typing import Any

import pytest

from billing.ledger import record
from billing.teams import get_team
from billing.times import HOUR_US
from billing.usage import Usage
from tests.billing import world as worlds
from tests.billing.world import request
from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.admin.test_statements import used

RANGE = {"start": "2026-09-01T00:00:00Z", "end": "2026-10-01T00:00:00Z"}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


async def ask(operator: Operator, **change: Any) -> list[tuple[str, str, str]]:
    answer = await operator.ask("POST", "/what-if", {**RANGE, **change})
    return [
        (row["actual"]["settled"][0]["amount"], row["what_if"]["settled"][0]["amount"], row["difference"][0]["amount"])
        for row in answer["data"]
    ]


async def test_a_range_under_other_terms_a_draft_and_another_route(gateway: Gateway, operator: Operator) -> None:
    await used(gateway, operator)
    terms = {"policy": "fixed", "base": "USD", "quote": "CNY", "rate": "7.3"}
    assert await ask(operator, terms=terms) == [("4.2", "30.66", "26.46")]
    price = {
        "provider": "deepseek",
        "model": "deepseek-chat",
        "token_class": "output",
        "currency": "USD",
        "amount": "1",
    }
    assert await ask(operator, prices=[price]) == [("4.2", "10", "5.8")]
    draft = await operator.post("/price-books/drafts", {"prices": [price]})
    assert await ask(operator, draft_id=draft["id"]) == [("4.2", "10", "5.8")]
    own = {"provider": "metergate", "model": "smollm2-135m-instruct", "token_class": "output", "currency": "USD"}
    await operator.post("/prices", {**own, "amount": "0.02", "effective_from": "2026-01-01T00:00:00Z"})
    route = {"provider": "local", "model": "smollm2-135m-instruct"}
    newest = (await operator.get("/price-books"))["data"][-1]["version"]
    assert await ask(operator, route=route, version=newest) == [("4.2", "0.2", "-4")], "local is priced as metergate"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, "prices"),
        ({"start": "yesterday", "version": 0}, "start"),
        ({"end": "2028-01-01T00:00:00Z", "version": 0}, "end"),
        ({"terms": {"policy": "fixed", "base": "USD", "quote": "CNY"}}, None),
        (
            {"prices": [{"provider": "p", "model": "m", "token_class": "output", "currency": "USD"}]},
            "prices[0].amount_per_mtok",
        ),
    ],
)
async def test_a_question_that_cannot_be_names_its_field(
    operator: Operator, change: dict[str, Any], field: str | None
) -> None:
    if field is None:
        assert await ask(operator, **change) == []
    else:
        assert (await operator.refused("/what-if", {**RANGE, **change}))[0] == field


async def test_an_unknown_draft_is_not_found(operator: Operator) -> None:
    await operator.ask("POST", "/what-if", {**RANGE, "draft_id": 9}, status=404)


async def test_the_break_even_of_an_engine(
    gateway: Gateway, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worlds.ROUTES, "own", "local")
    team_id = await used(gateway, operator)
    async with gateway.database.begin() as connection:
        team = await get_team(connection, team_id)
        assert team is not None
        books = gateway.catalog.snapshot.books
        usage = Usage(output=1_000_000, compute_us=HOUR_US)
        await record(connection, [request(books, team, "own", usage, "2026-09-20T12:00:00Z")])
    asked: dict[str, Any] = {"provider": "local", "start": "2026-09-20T12:00:00Z", "end": "2026-09-20T22:00:00Z"}
    answer = await operator.get("/reports/break-even", **asked, cost_per_hour="0.84", currency="USD")
    assert (answer["utilisation_percent"], answer["busy_cost_per_mtok"]["amount"]) == ("10", "0.84")
    (upstream,) = answer["upstreams"]
    assert (upstream["cost_per_mtok"]["amount"], upstream["break_even_tokens_per_hour"]) == ("0.42", 2_000_000)
    assert (upstream["break_even_percent"], upstream["cheaper"]) == ("200", "upstream")
    own = {"provider": "metergate", "model": "smollm2-135m-instruct", "token_class": "output", "currency": "USD"}
    await operator.post("/prices", {**own, "amount": "0.02"})
    again = await operator.get("/reports/break-even", **asked, cost_per_hour="0.84", currency="USD")
    assert [each["provider"] for each in again["upstreams"]] == ["deepseek"], "what it is sold at is no upstream"
    for more, field in (({}, "cost_per_hour"), ({"cost_per_hour": "1"}, "currency")):
        error = (await operator.get("/reports/break-even", **asked, **more, status=422))["error"]
        assert error["param"] == field
