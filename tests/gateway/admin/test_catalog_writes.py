"""Teams, prices, rates, terms, budgets: what is posted is checked, stored, listed, and in force in this process at once."""

from __future__ import annotations

import asyncio

from billing.ledger import record
from billing.times import now_us
from billing.usage import TokenClass, Usage
from gateway.admission.claims import BudgetWindow, Charge, Claim, Granted
from gateway.ids import new_request_id
from tests.billing.helpers import rated_record
from tests.gateway.admin.conftest import Gateway, Operator

PRICE = {
    "provider": "deepseek",
    "model": "deepseek-chat",
    "token_class": "output",
    "currency": "USD",
    "amount_per_mtok": "0.42",
    "effective_from": "2026-01-01T00:00:00Z",
}
RATE = {
    "base": "USD",
    "quote": "CNY",
    "kind": "policy",
    "rate": "7.3",
    "source": "manual",
    "effective_from": "2026-01-01T00:00:00Z",
}


async def test_a_team_is_created_listed_and_changed(gateway: Gateway, operator: Operator) -> None:
    created = await operator.post("/teams", {"name": "search", "settlement_currency": "CNY"})
    assert created == {
        "id": created["id"],
        "name": "search",
        "settlement_currency": "CNY",
        "billing": "postpaid",
        "credit_limit": None,
        "lost_charge": "input",
        "timezone": "UTC",
        "created_at": created["created_at"],
    }
    changed = await operator.patch(
        f"/teams/{created['id']}", {"billing": "prepaid", "credit_limit": "100.50", "lost_charge": "none"}
    )
    assert (changed["billing"], changed["credit_limit"], changed["lost_charge"]) == ("prepaid", "100.5", "none")
    assert await operator.get(f"/teams/{created['id']}") == changed
    assert (await operator.get("/teams"))["data"] == [changed]
    assert gateway.catalog.snapshot.teams[created["id"]].credit_limit_nano == 100_500_000_000
    assert (await operator.patch(f"/teams/{created['id']}", {"credit_limit": None}))["credit_limit"] is None


async def test_a_changed_team_is_at_once_what_its_keys_say(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    key = await operator.post("/keys", {"team_id": team, "name": "ci"})
    await operator.patch(f"/teams/{team}", {"billing": "prepaid"})
    (identity,) = gateway.catalog.snapshot.keys.values()
    assert (identity.key_id, identity.prepaid) == (key["id"], True)


async def test_the_settlement_currency_of_a_team_cannot_change(operator: Operator) -> None:
    team = await operator.team()
    param, _ = await operator.refused(f"/teams/{team}", {"settlement_currency": "USD"}, method="PATCH")
    assert param == "settlement_currency"


async def test_a_price_is_published_as_a_new_version_and_is_in_force_at_once(
    gateway: Gateway, operator: Operator
) -> None:
    before = gateway.catalog.snapshot.pins.book
    created = await operator.post("/prices", PRICE)
    assert created == {
        "id": created["id"],
        "book_version": before + 1,
        "provider": "deepseek",
        "model": "deepseek-chat",
        "token_class": "output",
        "currency": "USD",
        "amount": "0.42",
        "amount_per_mtok": "0.42",
        "unit": "mtok",
        "service_tier": "default",
        "processing": "standard",
        "min_input_tokens": 0,
        "effective_from": "2026-01-01T00:00:00Z",
        "source": None,
        "warnings": [],
    }
    snapshot = gateway.catalog.snapshot
    row = snapshot.books.prices.find(
        "deepseek", "deepseek-chat", TokenClass.OUTPUT, at_us=now_us(), version=snapshot.pins.book
    )
    assert row is not None
    assert (row.id, row.amount_micro) == (created["id"], 420_000)
    listed = {**{name: value for name, value in created.items() if name != "warnings"}, "in_force": True}
    assert listed in (await operator.get("/prices", provider="deepseek", model="deepseek-chat"))["data"]
    book = (await operator.get("/price-books"))["data"][-1]
    assert (book["version"], book["added"], len(book["hash"])) == (before + 1, 1, 64)


async def test_posting_the_same_price_again_publishes_nothing_and_another_amount_is_a_conflict(
    operator: Operator,
) -> None:
    created = await operator.post("/prices", PRICE)
    assert await operator.post("/prices", PRICE) == created
    param, message = await operator.refused("/prices", {**PRICE, "amount_per_mtok": "0.43"}, status=409)
    assert param == "effective_from"
    assert "already costs 0.42 USD per mtok from 2026-01-01T00:00:00Z" in message


async def test_a_price_per_request_is_an_amount_without_a_per_mtok_name(operator: Operator) -> None:
    body = {"provider": "deepseek", "model": "m", "token_class": "request", "currency": "USD", "amount": "0.001"}
    created = await operator.post("/prices", body)
    assert (created["unit"], created["amount"], created["amount_per_mtok"]) == ("request", "0.001", None)


async def test_prices_page_by_cursor_and_by_version(operator: Operator) -> None:
    made = [await operator.post("/prices", {**PRICE, "model": f"m{number}"}) for number in range(5)]
    first = await operator.get("/prices", provider="deepseek", limit=2)
    second = await operator.get("/prices", provider="deepseek", limit=2, cursor=first["next_cursor"])
    third = await operator.get("/prices", provider="deepseek", limit=2, cursor=second["next_cursor"])
    listed = first["data"] + second["data"] + third["data"]
    assert [row["id"] for row in listed] == [row["id"] for row in made]
    assert third["next_cursor"] is None
    held = await operator.get("/prices", provider="deepseek", version=made[2]["book_version"])
    assert held["data"] == listed[:3]


async def test_a_rate_is_recorded_exactly_and_listed(gateway: Gateway, operator: Operator) -> None:
    created = await operator.post("/rates", RATE)
    assert (created["rate"], created["kind"], created["effective_from"]) == ("7.3", "policy", "2026-01-01T00:00:00Z")
    fine = await operator.post("/rates", {**RATE, "kind": "reference", "rate": "7.123456789012"})
    assert fine["rate"] == "7.123456789012"
    assert gateway.catalog.snapshot.pins.rates == fine["id"]
    assert (await operator.get("/rates", kind="reference"))["data"] == [fine]
    for change, param in (
        ({"rate": "7.1234567890123"}, "rate"),
        ({"rate": "0"}, "rate"),
        ({"rate": 7.3}, "rate"),
        ({"quote": "USD"}, "quote"),
        ({"kind": "official"}, "kind"),
    ):
        assert (await operator.refused("/rates", {**RATE, **change}))[0] == param


async def test_terms_belong_to_exactly_one_of_a_team_and_a_provider(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    body = {"team_id": team, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY"}
    created = await operator.post("/terms", body)
    assert (created["team_id"], created["provider"], created["rate"], created["bps"]) == (team, None, "1", None)
    assert gateway.catalog.snapshot.pins.terms == created["id"]
    market = {"team_id": team, "policy": "market_plus_bps", "bps": 150, "base": "EUR", "quote": "CNY"}
    assert (await operator.post("/terms", market))["bps"] == 150
    assert [row["base"] for row in (await operator.get("/terms", team_id=team))["data"]] == ["USD", "EUR"]
    for change, param in (
        ({"provider": "deepseek"}, "team_id"),
        ({"team_id": None}, "team_id"),
        ({"team_id": "team_nobody"}, "team_id"),
        ({"quote": "EUR"}, "quote"),
        ({"policy": "friendly"}, "policy"),
        ({"policy": "market_plus_bps"}, None),
    ):
        named, said = await operator.refused("/terms", {**body, **change})
        assert param is None or named == param, said


async def test_a_budget_is_created_listed_and_ended(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    key = await operator.post("/keys", {"team_id": team, "name": "ci"})
    body = {
        "scope": "team",
        "scope_id": team,
        "amount": "100.00",
        "currency": "CNY",
        "period": "month",
        "timezone": "Asia/Shanghai",
    }
    created = await operator.post("/budgets", body)
    assert created == {
        **body,
        "amount": "100",
        "id": created["id"],
        "hard": True,
        "thresholds": None,
        "created_at": created["created_at"],
        "ended_at": None,
    }
    mine = await operator.post(
        "/budgets", {**body, "scope": "key", "scope_id": key["id"], "amount": "0", "hard": False}
    )
    everything = await operator.post("/budgets", {"scope": "all", "amount": "5", "currency": "USD", "period": "total"})
    (identity,) = gateway.catalog.snapshot.keys.values()
    assert [budget.id for budget in gateway.catalog.snapshot.budgets.over(identity)] == [
        mine["id"],
        created["id"],
        everything["id"],
    ]
    ended = await operator.post(f"/budgets/{created['id']}/end", status=200)
    assert ended["ended_at"] is not None
    assert [budget["id"] for budget in (await operator.get("/budgets"))["data"]] == [mine["id"], everything["id"]]
    assert len((await operator.get("/budgets", ended=True))["data"]) == 3
    assert [budget.id for budget in gateway.catalog.snapshot.budgets.over(identity)] == [mine["id"], everything["id"]]


async def test_a_budget_says_what_is_spent_and_reserved_and_when_it_resets(
    gateway: Gateway, operator: Operator
) -> None:
    team = await operator.team()
    body = {"scope": "team", "scope_id": team, "amount": "1", "currency": "CNY", "period": "total"}
    mine = await operator.post("/budgets", {**body, "thresholds": [90, 10]})
    assert mine["thresholds"] == [10, 90]
    row = rated_record(Usage(output=1_000_000), id_=new_request_id(), team=team, payer_team="team_a")
    foreign = await operator.post("/budgets", {"scope": "all", "amount": "5", "currency": "JPY", "period": "day"})
    async with gateway.database.begin() as connection:
        await record(connection, [row])
    window = BudgetWindow(mine["id"], "0-")
    held = Claim(new_request_id(), (), 0, (Charge(mine["id"], 80_000_000, 10**9, "0-", None, True),), 60_000_000)
    await gateway.admission.seeding.seed([window])
    assert isinstance(await gateway.admission.store.admit(held), Granted)
    shown = {each["id"]: each for each in (await operator.get("/budgets"))["data"]}
    assert shown[mine["id"]] == {
        **mine, "spent": "0.42", "reserved": "0.08", "remaining": "0.5", "resets_at": None,
    }  # fmt: skip
    assert await operator.get(f"/budgets/{mine['id']}") == shown[mine["id"]]
    assert shown[foreign["id"]]["spent"] is None  # no rate leads from CNY to JPY
    ended = await operator.post(f"/budgets/{mine['id']}/end", status=200)
    assert await operator.get(f"/budgets/{mine['id']}") == {
        **ended, "spent": None, "reserved": None, "remaining": None, "resets_at": None,
    }  # fmt: skip
    await gateway.admission.store.settle(held, 0, {})


async def test_a_keys_budget_stands_in_its_teams_currency(operator: Operator) -> None:
    key = await operator.post("/keys", {"team_id": await operator.team(), "name": "ci"})
    body = {"scope": "key", "scope_id": key["id"], "amount": "1", "currency": "USD", "period": "day"}
    assert await operator.refused("/budgets", body) == (
        "currency",
        "currency: the key's team settles in CNY, not in USD",
    )


async def test_parallel_writes_all_stand_and_the_version_counts_them(gateway: Gateway, operator: Operator) -> None:
    before = gateway.catalog.snapshot.version
    await asyncio.gather(*(operator.team(f"t{number}") for number in range(8)))
    assert len(gateway.catalog.snapshot.teams) == 8
    assert gateway.catalog.snapshot.version >= before + 8


async def test_a_list_of_prices_says_which_are_in_force(operator: Operator) -> None:
    price = {"provider": "deepseek", "model": "deepseek-chat", "token_class": "output", "currency": "USD"}
    for amount, since in (("1", "2026-01-01"), ("2", "2026-02-01"), ("3", "2099-01-01")):
        await operator.post("/prices", {**price, "amount": amount, "effective_from": f"{since}T00:00:00Z"})
    wrong = {**price, "amount": "9", "effective_from": "2026-02-01T00:00:00Z"}
    assert "supersede" in (await operator.refused("/prices", wrong, status=409))[1]
    await operator.post("/prices", {**wrong, "supersede": True})
    listed = (await operator.get("/prices"))["data"]
    assert [(row["amount"], row["in_force"]) for row in listed] == [
        ("1", False),
        ("2", False),
        ("3", False),
        ("9", True),
    ]


async def test_a_price_that_no_route_asks_for_is_published_with_a_warning(operator: Operator) -> None:
    price = {"token_class": "output", "currency": "USD", "amount": "1"}

    async def warned(provider: str, model: str) -> list[str]:
        answer = await operator.post("/prices", {**price, "provider": provider, "model": model})
        return list(answer["warnings"])

    assert await warned("deepseek", "deepseek-chat") == []
    assert await warned("metergate", "smollm2-135m-instruct") == [], "a provider's price_as is its list"
    (said,) = await warned("deepseek", "deepseek-chta")
    assert said.startswith("model: no route of the list 'deepseek' asks for 'deepseek-chta'; its models: deepseek-chat")
    (said,) = await warned("local", "smollm2-135m-instruct")
    assert said.startswith("provider: no provider is priced by the list 'local'")
    team = await operator.team()
    await operator.post("/prices", {**price, "provider": "ours", "model": "deepseek-chat", "token_class": "input"})
    await operator.post("/sell-prices", {"team_id": team, "sell_list": "ours"})
    assert await warned("ours", "deepseek-chat") == [], "teams buy on it"


async def test_an_amount_of_a_currency_with_large_figures_names_the_limit(operator: Operator) -> None:
    team = await operator.team("hanoi", "VND")
    body = {"scope": "team", "scope_id": team, "amount": "10000000000", "currency": "VND", "period": "month"}
    for path, asked in (("/budgets", body), (f"/wallets/{team}/adjustments", {"amount": "9" * 30, "reason": "x"})):
        field, message = await operator.refused(path, asked)
        assert field == "amount"
        assert "beyond 9223372036.854775807, the most that an amount can be in any currency" in message
    await operator.post(f"/wallets/{team}/adjustments", {"amount": "9000000000", "reason": "x"})
    field, message = await operator.refused(f"/wallets/{team}/adjustments", {"amount": "900000000", "reason": "x"})
    assert (field, "the balance would be beyond" in message) == ("amount", True)
