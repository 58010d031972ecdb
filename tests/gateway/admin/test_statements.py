"""Statements over the admin API: drafted, issued, credited, and in four formats."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from sqlalchemy import insert

from billing.ledger import record
from billing.teams import get_team
from billing.usage import Usage
from billing.watermarks import raise_watermark
from gateway.metering.tables import dead_letters
from tests.billing.helpers import at, request_id
from tests.billing.world import request
from tests.gateway.admin.conftest import Gateway, Operator


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


NAME = "<b>search</b>"


async def used(gateway: Gateway, operator: Operator, quantity: int = 10_000_000) -> str:
    """A team with one request of September 2026, priced and settled as the founding case is."""
    team = await operator.post("/teams", {"name": NAME, "settlement_currency": "CNY", "timezone": "Asia/Shanghai"})
    start = "2026-01-01T00:00:00Z"
    price = {"provider": "deepseek", "model": "deepseek-chat", "token_class": "output", "currency": "USD"}
    await operator.post("/prices", price | {"amount_per_mtok": "0.42", "effective_from": start})
    await operator.post(
        "/rates", {"base": "USD", "quote": "CNY", "kind": "policy", "rate": "7.3", "effective_from": start}
    )
    await operator.post(
        "/terms",
        {"team_id": team["id"], "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY", "effective_from": start},
    )
    await use(gateway, team["id"], quantity)
    return str(team["id"])


async def use(gateway: Gateway, team_id: str, quantity: int) -> None:
    await gateway.catalog.refresh()
    async with gateway.database.begin() as connection:
        team = await get_team(connection, team_id)
        assert team is not None
        made = request(
            gateway.catalog.snapshot.books, team, "deepseek-chat", Usage(output=quantity), "2026-09-20T12:00:00Z"
        )
        await record(connection, [made])


async def test_a_month_is_drafted_issued_and_never_issued_twice(gateway: Gateway, operator: Operator) -> None:
    team_id = await used(gateway, operator)
    draft = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    assert (draft["state"], draft["number"], draft["hash"]) == ("draft", None, None)
    assert draft["payable"] == {"amount": "4.2", "currency": "CNY"}
    assert draft["document"]["totals"]["saving"] == {"amount": "26.46", "currency": "CNY"}
    issued = await operator.post(f"/statements/{team_id}/{draft['id']}/issue", {})
    assert (issued["id"], issued["state"], issued["number"]) == (draft["id"], "issued", "MG-000001")
    assert len(issued["hash"]) == 64
    field, message = await operator.refused(f"/statements/{team_id}", {"month": "2026-09"}, status=409)
    assert (field, "credit that one first" in message) == ("month", True)
    await operator.refused(f"/statements/{team_id}/{draft['id']}/issue", {}, status=409)
    await operator.refused(f"/statements/{team_id}/{draft['id']}/discard", {}, status=409)
    note = await operator.post(f"/statements/{team_id}/{draft['id']}/credit-note", {"reason": "address"})
    assert (note["kind"], note["payable"]["amount"], note["document"]["corrects"]) == (
        "credit_note",
        "-4.2",
        "MG-000001",
    )
    listed = (await operator.get(f"/statements/{team_id}"))["data"]
    assert [(row["number"], row["credited_by"]) for row in listed] == [("MG-000001", note["id"]), ("MG-000002", None)]
    assert (await operator.get("/statements"))["broken"] == []


async def test_a_part_of_a_statement_is_credited_in_every_form(
    gateway: Gateway, operator: Operator, client: httpx.AsyncClient
) -> None:
    team_id = await used(gateway, operator)
    draft = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    path = f"/statements/{team_id}/{draft['id']}"
    await operator.post(f"{path}/credit-note", {"reason": "early", "amount": "1"}, status=409)
    await operator.post(f"{path}/issue", {})
    note = await operator.post(f"{path}/credit-note", {"reason": "outage", "amount": "1.2", "actor": "ann"})
    assert (note["kind"], note["payable"]["amount"], note["corrects_id"]) == (
        "partial_credit_note",
        "-1.2",
        draft["id"],
    )
    rest = await operator.post(f"{path}/credit-note", {"reason": "outage", "lines": [1]}, status=409)
    assert rest["error"]["param"] == "lines"
    assert (await operator.get(path))["credited"] == {"amount": "1.2", "currency": "CNY"}
    entries = (await operator.get(f"/wallets/{team_id}/entries"))["data"]
    assert [(row["amount"], row["reason"], row["actor"]) for row in entries if row["kind"] == "adjustment"] == [
        ("1.2", "credit note MG-000002: outage", "ann")
    ]
    shown = {}
    for form in ("csv", "focus", "html"):
        answer = await client.get(
            f"/admin/v1/statements/{team_id}/{note['id']}",
            params={"format": form},
            headers={"authorization": operator.authorization},
        )
        shown[form] = answer.text
    page = await client.get(f"/admin/v1{path}?format=html", headers={"authorization": operator.authorization})
    assert "Since it was issued, 1.2 CNY of it were credited" in page.text
    assert "Credit note over a part" in shown["html"] and "-1.2 CNY" in shown["html"]
    assert [row["payable"] for row in csv.DictReader(io.StringIO(shown["csv"]))] == ["-1.2"]
    assert [row["BilledCost"] for row in csv.DictReader(io.StringIO(shown["focus"]))] == ["-1.2"]
    field, _ = await operator.refused(f"{path}/credit-note", {"reason": "x", "amount": "1", "lines": [1]})
    assert field == "lines"


async def test_a_draft_is_made_again_and_thrown_away(gateway: Gateway, operator: Operator) -> None:
    team_id = await used(gateway, operator)
    first = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    await use(gateway, team_id, 10_000_000)
    again = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    assert (again["id"], again["payable"]["amount"]) == (first["id"], "8.4")
    gone = await operator.post(f"/statements/{team_id}/{first['id']}/discard", {})
    assert gone == {"id": first["id"], "discarded": True}
    await operator.get(f"/statements/{team_id}/{first['id']}", status=404)


async def test_rule_29_another_team_s_statement_is_not_there(gateway: Gateway, operator: Operator) -> None:
    team_id = await used(gateway, operator)
    other = await operator.team("other")
    draft = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    for path in ("issue", "credit-note", "discard"):
        body = {"reason": "x"} if path == "credit-note" else {}
        await operator.post(f"/statements/{other}/{draft['id']}/{path}", body, status=404)
    await operator.get(f"/statements/{other}/{draft['id']}", status=404)
    await operator.get("/statements/team_nobody", status=404)
    await operator.post("/statements/team_nobody", {"month": "2026-09"}, status=404)


@pytest.mark.parametrize("month", ["2026-13", "26-09-1", "2026/09", "2098-01"])
async def test_a_month_that_cannot_be_names_its_field(operator: Operator, month: str) -> None:
    team_id = await operator.team()
    field, _ = await operator.refused(f"/statements/{team_id}", {"month": month})
    assert field == "month"


async def test_a_journal_behind_and_dead_letters_hold_a_statement_up(gateway: Gateway, operator: Operator) -> None:
    team_id = await used(gateway, operator)
    draft = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    moment_us = at("2026-09-02T00:00:00Z")
    letter = {
        "digest": "d",
        "request_id": request_id(moment_us),
        "journal": "j",
        "reason": "r",
        "payload": b"",
        "set_aside_at_us": moment_us,
    }
    async with gateway.database.begin() as connection:
        await raise_watermark(connection, "0001-lost-volume", moment_us)
        await connection.execute(insert(dead_letters).values(letter))
    path = f"/statements/{team_id}/{draft['id']}/issue"
    field, message = await operator.refused(path, {}, status=409)
    assert (field, message[:40]) == ("without_set_aside", "without_set_aside: 1 request(s) of the m")
    field, message = await operator.refused(path, {"without_set_aside": True}, status=409)
    assert field == "without_journals"
    assert "0001-lost-volume (at 2026-09-02T00:00:00Z)" in message
    closing = (await operator.get("/statements"))["data"]
    assert [(row["journal"], row["watermark"], row["complete"]) for row in closing] == [
        ("0001-lost-volume", "2026-09-02T00:00:00Z", False)
    ]
    issued = await operator.post(path, {"without_set_aside": True, "without_journals": ["0001-lost-volume"]})
    assert issued["document"]["without_journals"] == ["0001-lost-volume"]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("src", "href", "style")]

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_a_statement_comes_as_csv_as_focus_and_as_a_page_without_script(
    gateway: Gateway, operator: Operator, client: httpx.AsyncClient
) -> None:
    team_id = await used(gateway, operator)
    draft = await operator.post(f"/statements/{team_id}", {"month": "2026-09"})
    await operator.post(f"/statements/{team_id}/{draft['id']}/issue", {})

    async def fetch(form: str) -> httpx.Response:
        answer = await client.get(
            f"/admin/v1/statements/{team_id}/{draft['id']}",
            params={"format": form},
            headers={"authorization": operator.authorization},
        )
        assert answer.status_code == 200
        return answer

    table = await fetch("csv")
    assert table.headers["content-disposition"] == 'attachment; filename="MG-000001-2026-09.csv"'
    assert [row["payable"] for row in csv.DictReader(io.StringIO(table.text))] == ["4.2"]
    focus = list(csv.DictReader(io.StringIO((await fetch("focus")).text)))
    assert [(row["PricingCurrency"], row["BillingCurrency"], row["BilledCost"]) for row in focus] == [
        ("USD", "CNY", "4.2")
    ]
    answer = await fetch("html")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; style-src 'sha256-" in answer.headers["content-security-policy"]
    page = _Page()
    page.feed(answer.text)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert page.handlers == []
    assert "There is no total at the market rate: no line had such a rate." in page.text
    totals = re.findall(r'<td class="n">([^<]+)</td>', answer.text.partition("<tfoot>")[2].partition("</tfoot>")[0])
    assert totals == ["30.66 CNY", "–", "4.2 CNY"]
    for shown in (NAME, "MG-000001", "10,000,000", "0.42 USD", "30.66 CNY", "26.46 CNY", "86.3014 %", "4.2 CNY"):
        assert shown in page.text
    await operator.get(f"/statements/{team_id}/{draft['id']}", format="pdf", status=422)


async def test_an_id_that_no_row_can_have_is_a_404(operator: Operator) -> None:
    team_id = await operator.team()
    for number in (0, 10**30):
        await operator.get(f"/statements/{team_id}/{number}", status=404)
        await operator.post(f"/statements/{team_id}/{number}/issue", {}, status=404)
        await operator.get(f"/price-books/drafts/{number}", status=404)
        await operator.post(f"/price-books/drafts/{number}/publish", {}, status=404)
