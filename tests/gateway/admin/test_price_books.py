"""Versions of the price book: drafted, looked at, published whole, compared, explained."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from billing.seed import shipped_book
from tests.gateway.admin.conftest import Gateway, Operator


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


CSV = (
    "provider,model,token_class,currency,amount,effective_from\n"
    "deepseek,deepseek-chat,input,USD,0.28,2026-01-01T00:00:00Z\n"
    "deepseek,deepseek-chat,output,USD,0.42,2026-01-01T00:00:00Z\n"
)
YAML = """\
note: cheaper
models:
  - provider: deepseek
    model: deepseek-chat
    currency: USD
    effective_from: "2026-06-01T00:00:00Z"
    prices: {output: "0.40", cache_read: "0.028"}
"""


def changes(answer: Any) -> list[tuple[str, str, str | None]]:
    return [(row["change"], row["token_class"], row["before"] and row["before"]["amount"]) for row in answer["prices"]]


async def test_a_draft_is_seen_published_whole_and_supersedes_the_version_before(operator: Operator) -> None:
    first = await operator.post("/price-books/import", {"format": "csv", "content": CSV, "note": "start"})
    assert (first["version"], changes(first)) == (1, [("new", "input", None), ("new", "output", None)])
    draft = await operator.post("/price-books/drafts", {"format": "yaml", "content": YAML})
    assert (draft["state"], draft["note"], draft["rows"]) == ("draft", "cheaper", 2)
    assert changes(draft) == [("changed", "output", "0.42"), ("new", "cache_read", None)]
    assert len((await operator.get("/prices"))["data"]) == 2, "a draft prices nothing"
    published = await operator.post(f"/price-books/drafts/{draft['id']}/publish", {})
    assert (published["state"], published["version"]) == ("published", 2)
    books = (await operator.get("/price-books"))["data"]
    assert [(book["version"], book["state"], book["added"]) for book in books] == [
        (1, "superseded", 2),
        (2, "published", 2),
    ]
    assert len({book["hash"] for book in books}) == 2
    for verb in ("publish", "discard"):
        await operator.refused(f"/price-books/drafts/{draft['id']}/{verb}", {}, status=409)
    shown = await operator.get(f"/price-books/drafts/{draft['id']}")
    assert [change for change, _, _ in changes(shown)] == ["standing", "standing"]


async def test_a_dry_run_publishes_nothing_and_shows_conflicts(gateway: Gateway, operator: Operator) -> None:
    await operator.post("/price-books/import", {"format": "csv", "content": CSV})
    other = CSV.replace("0.42", "0.43")
    seen = await operator.post("/price-books/import", {"format": "csv", "content": other, "dry_run": True})
    assert (seen["dry_run"], seen["version"]) == (True, None)
    assert changes(seen) == [("standing", "input", "0.28"), ("conflict", "output", "0.42")]
    field, message = await operator.refused("/price-books/import", {"format": "csv", "content": other}, status=409)
    assert field == "effective_from"
    assert "let the new price start later" in message
    async with gateway.database.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM price_rows")) == 2


async def test_a_draft_that_adds_nothing_is_not_a_version(operator: Operator) -> None:
    await operator.post("/price-books/import", {"format": "csv", "content": CSV})
    draft = await operator.post("/price-books/drafts", {"format": "csv", "content": CSV})
    field, message = await operator.refused(f"/price-books/drafts/{draft['id']}/publish", {}, status=409)
    assert (field, "stands in the book already" in message) == ("draft_id", True)
    gone = await operator.post(f"/price-books/drafts/{draft['id']}/discard", {})
    assert gone["state"] == "discarded"
    assert [row["state"] for row in (await operator.get("/price-books/drafts"))["data"]] == ["discarded"]


async def test_a_diff_shows_what_a_version_added_beside_what_it_closed(operator: Operator) -> None:
    await operator.post("/price-books/import", {"format": "csv", "content": CSV})
    await operator.post("/price-books/import", {"format": "yaml", "content": YAML})
    answer = await operator.get("/price-books/2/diff")
    assert [
        (row["price"]["token_class"], row["price"]["amount"], row["before"] and row["before"]["amount"])
        for row in answer["data"]
    ] == [
        ("output", "0.4", "0.42"),
        ("cache_read", "0.028", None),
    ]
    assert len((await operator.get("/price-books/2/diff", against=0))["data"]) == 4
    await operator.get("/price-books/3/diff", status=404)
    await operator.get("/price-books/1/diff", against=2, status=422)


async def test_an_explanation_names_the_row_and_why_the_others_do_not_apply(operator: Operator) -> None:
    await operator.post("/price-books/import", {"format": "csv", "content": CSV})
    await operator.post("/price-books/import", {"format": "yaml", "content": YAML})
    asked: dict[str, Any] = {"provider": "deepseek", "model": "deepseek-chat", "token_class": "output"}
    answer = await operator.get("/prices/explain", **asked, at="2026-03-01T00:00:00Z")
    assert answer["price"]["amount"] == "0.42"
    assert [(row["applies"], row["why"]) for row in answer["rows"]] == [(False, "starts later"), (True, "applies")]
    later = await operator.get("/prices/explain", **asked, at="2026-07-01T00:00:00Z", version=1)
    assert later["price"]["amount"] == "0.42"
    assert later["rows"][0]["why"] == "published in version 2, after the pinned version 1"
    nothing = await operator.get("/prices/explain", provider="x", model="y", token_class="output")
    assert (nothing["price"], nothing["rows"]) == (None, [])
    await operator.get("/prices/explain", **{**asked, "token_class": "outputs"}, status=422)


async def test_the_shipped_book_goes_through_a_draft_row_for_row(operator: Operator) -> None:
    rows = [
        {
            "provider": row.price_list,
            "model": row.model,
            "token_class": row.token_class,
            "currency": row.currency,
            "amount": row.amount,
            "effective_from": "2026-01-01T00:00:00Z",
        }
        for row in shipped_book().drafts
    ]
    draft = await operator.post("/price-books/drafts", {"prices": rows})
    published = await operator.post(f"/price-books/drafts/{draft['id']}/publish", {})
    assert (published["rows"], published["version"]) == (len(rows), 1)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prices"),
        ({"content": CSV}, "format"),
        ({"prices": [], "format": "csv"}, "format"),
        ({"prices": []}, "prices"),
        ({"format": "csv", "content": CSV.replace("USD", "RMB", 1)}, "currency"),
        ({"format": "csv", "content": CSV.replace("0.42", "1" + "0" * 30)}, "amount_per_mtok"),
        ({"format": "csv", "content": CSV.replace("0.42", "-1")}, "amount_per_mtok"),
        ({"format": "csv", "content": CSV.replace("0.42", "0.0000001")}, "amount_per_mtok"),
        ({"format": "csv", "content": CSV.replace("output", "outputs")}, "token_class"),
        ({"format": "csv", "content": "a,b\n1,2\n"}, "provider"),
        ({"format": "yaml", "content": "models: {"}, "file"),
        ({"format": "yaml", "content": YAML.replace('"0.40"', "0.40")}, "file"),
        (
            {"prices": [{"provider": "p", "model": "m", "token_class": "output", "currency": "USD"}]},
            "prices[0].amount_per_mtok",
        ),
    ],
)
async def test_rows_that_cannot_be_are_refused_with_their_field(
    operator: Operator, body: dict[str, Any], field: str
) -> None:
    for path in ("/price-books/drafts", "/price-books/import"):
        assert (await operator.refused(path, body))[0] == field
    assert (await operator.get("/price-books"))["data"] == []


async def test_rows_that_contradict_each_other_are_one_conflict(operator: Operator) -> None:
    body = {"format": "csv", "content": CSV + CSV.splitlines()[2].replace("0.42", "0.5") + "\n"}
    assert (await operator.refused("/price-books/import", body, status=409))[0] == "effective_from"


async def test_nothing_starts_inside_an_issued_month(operator: Operator) -> None:
    team = await operator.team()
    draft = await operator.post(f"/statements/{team}", {"month": "2026-09"})
    await operator.post(f"/statements/{team}/{draft['id']}/issue", {})
    inside, after = "2026-09-30T23:59:59Z", "2026-10-01T00:00:00Z"
    price = {"provider": "p", "model": "m", "token_class": "output", "currency": "USD", "amount": "1"}
    rate = {"base": "USD", "quote": "CNY", "kind": "policy", "rate": "7.3"}
    terms = {"team_id": team, "policy": "fixed", "rate": "1", "base": "USD", "quote": "CNY"}
    for path, body in (("/prices", price), ("/rates", rate), ("/terms", terms)):
        field, message = await operator.refused(path, {**body, "effective_from": inside})
        assert field == "effective_from"
        assert message.endswith("start at 2026-10-01T00:00:00Z or later")
        await operator.post(path, {**body, "effective_from": after})
    market = {**rate, "kind": "reference", "effective_from": inside}
    await operator.post("/rates", market)
