"""Wallets, codes, sell prices and corrections over the admin API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.admin.test_usage import book, serve


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def paid(**changed: object) -> dict[str, object]:
    return {"external_id": "wire-1", "amount": "100.00", "currency": "CNY", "method": "bank_transfer", **changed}


async def test_money_in_and_used_is_the_balance_and_every_entry_says_why(gateway: Gateway, operator: Operator) -> None:
    team = await book(operator)
    await operator.patch(f"/teams/{team}", {"billing": "prepaid", "credit_limit": "5"})
    entry = await operator.post(f"/wallets/{team}/top-ups", paid())
    assert (entry["kind"], entry["amount"], entry["currency"], entry["balance"]) == ("top_up", "100", "CNY", "100")
    assert (await operator.post(f"/wallets/{team}/top-ups", paid())) == entry
    param, message = await operator.refused(f"/wallets/{team}/top-ups", paid(amount="99"), status=409)
    assert param == "external_id"
    assert message.startswith("external_id: 'wire-1' was entered before with another amount (100, entry")
    param, message = await operator.refused(f"/wallets/{team}/top-ups", paid(external_id="2", currency="USD"))
    assert (param, message) == (
        "currency",
        "currency: this wallet stands in CNY; pay in it, or give the rate (CNY for one USD)",
    )
    dollars = await operator.post(
        f"/wallets/{team}/top-ups", paid(external_id="usd", amount="10", currency="USD", rate="7.1")
    )
    assert (dollars["amount"], dollars["paid"], dollars["rate"]) == ("71", {"amount": "10", "currency": "USD"}, "7.1")
    back = await operator.post(
        f"/wallets/{team}/entries/{dollars['id']}/reverse", {"reason": "charged back", "actor": "bank"}
    )
    assert (back["amount"], back["reverses"], back["paid"]["amount"]) == ("-71", dollars["id"], "-10")
    await operator.post(f"/wallets/{team}/adjustments", {"amount": "-2.5", "reason": "late fee", "actor": "ann"})
    await serve(gateway, team)
    wallet = await operator.get(f"/wallets/{team}")
    assert wallet == {
        "team_id": team, "currency": "CNY", "billing": "prepaid", "balance": "97.08", "credit_limit": "5",
        "available": "102.08", "low_balance": None, "is_low": False,
    }  # fmt: skip
    entries = (await operator.get(f"/wallets/{team}/entries"))["data"]
    assert [each["kind"] for each in entries] == ["usage", "adjustment", "reversal", "top_up", "top_up"]
    assert (entries[0]["amount"], entries[0]["requests"], entries[1]["reason"]) == ("-0.42", 1, "late fee")
    first = await operator.get(f"/wallets/{team}/entries", limit=2)
    rest = await operator.get(f"/wallets/{team}/entries", limit=10, cursor=first["next_cursor"])
    assert [*first["data"], *rest["data"]] == entries
    assert (await operator.get(f"/wallets/{team}/entries", kind="usage"))["data"] == entries[:1]
    check = await operator.get(f"/wallets/{team}/check")
    assert (check["agrees"], check["balance"], check["usage_settled"]) == (True, "97.08", "0.42")
    assert (await operator.get("/wallets/team_none", status=404))["error"]["code"] == "not_found"
    await operator.refused("/wallets/team_none/top-ups", paid(external_id="x"), status=404)


async def test_rule_09_codes_are_shown_once_and_redeemed_once(operator: Operator) -> None:
    team = await operator.team()
    batch = await operator.post("/redemption-codes", {"amount": "20", "currency": "CNY", "count": 3, "note": "fair"})
    code, *others = batch.pop("codes")
    assert len(set(others)) == 2
    assert (await operator.get(f"/redemption-codes/{batch['id']}")) == batch
    answers = await asyncio.gather(
        *(
            operator.client.post(
                f"/admin/v1/wallets/{team}/redemptions",
                json={"code": code.lower()},
                headers={"authorization": operator.authorization},
            )
            for _ in range(10)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 9]
    assert (await operator.get(f"/wallets/{team}"))["balance"] == "20"
    (row,) = [
        each for each in (await operator.get(f"/redemption-codes/{batch['id']}/codes"))["data"] if each["team_id"]
    ]
    assert (row["hint"], row["team_id"]) == (code[-4:], team)
    assert code not in str(await operator.get(f"/redemption-codes/{batch['id']}/codes"))
    await operator.ask("POST", f"/redemption-codes/{batch['id']}/end", {})
    assert (await operator.refused(f"/wallets/{team}/redemptions", {"code": others[0]}, status=409))[0] == "code"
    assert (await operator.refused(f"/wallets/{team}/redemptions", {"code": "MG-NOBODY"}))[0] == "code"
    assert (await operator.get("/redemption-codes"))["data"][0]["redeemed"] == 1
    for body, field in (
        ({"amount": "0", "currency": "CNY"}, "amount"),
        ({"amount": "1", "currency": "RMB"}, "currency"),
        ({"amount": "1", "currency": "CNY", "count": 10_001}, "count"),
        ({"amount": "1", "currency": "CNY", "redeem_until": "2001-01-01T00:00:00Z"}, "redeem_until"),
    ):
        assert (await operator.refused("/redemption-codes", body))[0] == field


async def test_a_team_is_sold_at_a_multiple_and_the_margin_is_shown(gateway: Gateway, operator: Operator) -> None:
    team = await book(operator)
    start = "2026-01-01T00:00:00Z"
    rate: dict[str, Any] = {"base": "USD", "quote": "CNY", "kind": "reference", "rate": "7", "source": "ecb"}
    await operator.post("/rates", rate)
    row = await operator.post("/sell-prices", {"team_id": team, "multiplier": "1.5", "effective_from": start})
    assert (row["multiplier"], row["sell_list"], row["provider"], row["model"]) == ("1.5", None, None, None)
    request = await serve(gateway, team)
    view = await operator.get(f"/usage/requests/{request}")
    assert (view["list"]["amount"], view["settled"]["amount"], view["cost"]["amount"]) == ("0.63", "0.63", "0.42")
    assert (view["margin"], view["negative_margin"]) == ({"amount": "-2.31", "currency": "CNY"}, True)
    assert view["sell"]["id"] == row["id"]
    flagged = (await operator.get("/usage/requests", negative_margin=True))["data"]
    assert [each["id"] for each in flagged] == [str(request)]
    (bucket,) = (await operator.get("/usage"))["data"]
    assert (bucket["negative_margin"], bucket["margin"]) == (1, [{"amount": "-2.31", "currency": "CNY"}])
    assert (await operator.get("/sell-prices", team_id=team))["data"] == [row]
    assert (await operator.refused("/sell-prices", {"team_id": team}))[0] == "multiplier"
    assert (await operator.refused("/sell-prices", {"team_id": team, "sell_list": "nowhere"}))[0] == "sell_list"
    assert (await operator.refused("/sell-prices", {"team_id": "team_none", "multiplier": "1"}))[0] == "team_id"


async def test_a_request_is_corrected_by_linked_rows_and_the_wallet_follows(
    gateway: Gateway, operator: Operator
) -> None:
    team = await book(operator)
    request, other = await serve(gateway, team), await serve(gateway, team)
    path = f"/usage/requests/{request}/corrections"
    again = {"action": "rerate", "reason": "sold too dear", "actor": "ann"}
    param, message = await operator.refused(path, again)
    assert (param, message) == ("id", "id: rated with today's books it costs the same; there is nothing to correct")
    await operator.post(
        "/sell-prices", {"team_id": team, "multiplier": "0.5", "effective_from": "2026-01-01T00:00:00Z"}
    )
    answer = await operator.post(path, again)
    reversal, replacement = answer["rows"]
    assert (answer["original"], answer["reversal"], answer["replacement"]) == (
        str(request),
        reversal["id"],
        replacement["id"],
    )
    assert [(row["kind"], row["corrects"], row["settled"]["amount"]) for row in answer["rows"]] == [
        ("reversal", str(request), "-0.42"),
        ("correction", str(request), "0.21"),
    ]
    shown = await operator.get(f"/usage/requests/{request}")
    assert shown["settled"]["amount"] == "0.42"
    assert shown["corrected_by"]["replacement"] == replacement["id"]
    (link,) = (await operator.get(path))["data"]
    assert (link["reason"], link["actor"]) == ("sold too dear", "ann")
    _, message = await operator.refused(path, again, status=409)
    assert f"correct its replacement {replacement['id']}" in message
    taken = await operator.post(f"/usage/requests/{other}/corrections", {"action": "reverse", "reason": "test call"})
    assert (taken["replacement"], len(taken["rows"]), taken["actor"]) == (None, 1, "admin")
    check = await operator.get(f"/wallets/{team}/check")
    assert (check["agrees"], check["balance"]) == (True, "-0.21")
    for wrong, field in (({"action": "rerate"}, "reason"), ({"action": "edit", "reason": "x"}, "action")):
        assert (await operator.refused(path, wrong))[0] == field
    await operator.refused("/usage/requests/none/corrections", again, status=404)
    assert (await operator.get("/usage/requests/none/corrections", status=404))["error"]["code"] == "not_found"


async def test_every_team_s_wallet_is_listed_a_page_at_a_time(operator: Operator) -> None:
    teams = sorted([await operator.team(f"team {number}", "CNY" if number else "USD") for number in range(3)])
    await operator.post(
        f"/wallets/{teams[1]}/top-ups", paid(amount="5", currency=await currency_of(operator, teams[1]))
    )
    await operator.patch(f"/wallets/{teams[1]}", {"low_balance": "10"})
    await operator.patch(f"/teams/{teams[2]}", {"billing": "prepaid", "credit_limit": "7"})
    first = await operator.get("/wallets", limit=2)
    rest = await operator.get("/wallets", limit=2, cursor=first["next_cursor"])
    listed = first["data"] + rest["data"]
    assert [row["team_id"] for row in listed] == teams and rest["next_cursor"] is None
    for row in listed:
        assert row == await operator.get(f"/wallets/{row['team_id']}"), "the same as one by one"
    assert [row["team_id"] for row in (await operator.get("/wallets", low="true"))["data"]] == [teams[1]]
    assert [row["team_id"] for row in (await operator.get("/wallets", low="false"))["data"]] == [teams[0], teams[2]]
    assert [row["available"] for row in (await operator.get("/wallets", billing="prepaid"))["data"]] == ["7"]
    await operator.get("/wallets", billing="gratis", status=422)


async def currency_of(operator: Operator, team_id: str) -> str:
    return str((await operator.get(f"/teams/{team_id}"))["settlement_currency"])
