"""Groups of a tag: together they are what the report without tags says, a corrected request under its own."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing import tag_sums
from billing.corrections import reverse
from billing.database import reading
from billing.errors import InvalidQuery
from billing.ledger import record, usage_buckets
from billing.money import Money
from billing.reads import UsageFilters
from billing.recording import record_terms
from billing.reports import UsageBucket
from billing.teams import create_team
from billing.usage import Usage
from tests.billing.helpers import FOUNDING, NOON_US, at, rated_record, request_id

START, END = at("2026-11-29T00:00:00Z"), at("2026-12-01T00:00:00Z")


async def buckets(database: AsyncEngine, *groups: str, **asked: object) -> list[UsageBucket]:
    async with reading(database) as connection:
        found: list[UsageBucket] = []
        cursor = None
        while True:
            page = await usage_buckets(
                connection,
                START,
                END,
                group_by=groups,
                cursor=cursor,
                limit=int(str(asked.get("limit", 200))),
                filters=UsageFilters(team_id=asked.get("team_id")),  # type: ignore[arg-type]
            )
            found += page.data
            if (cursor := page.next_cursor) is None:
                return found


def one(tags: Mapping[str, str], moment: str, output: int = 1_000_000, **more: str) -> object:
    return rated_record(Usage(input=3, output=output), id_=request_id(at(moment)), tags=tags, **more)  # type: ignore[arg-type]


@pytest.fixture
async def filled(database: AsyncEngine) -> AsyncEngine:
    rows = [
        one({"job": "nightly", "who": "ann"}, "2026-11-29T10:00:00Z"),
        one({"job": "nightly", "who": "bob"}, "2026-11-29T11:00:00Z", team="team_b", currency="USD"),
        one({"job": "ci"}, "2026-11-29T12:00:00Z", status="failed"),
        one({}, "2026-11-30T01:00:00Z"),
        one({"who": "ann"}, "2026-11-30T02:00:00Z", model="gpt"),
    ]
    async with database.begin() as connection:
        await record(connection, rows)  # type: ignore[arg-type]
    return database


async def test_the_groups_of_a_tag_are_those_of_its_values_and_the_empty_one(filled: AsyncEngine) -> None:
    found = await buckets(filled, "tag:job")
    assert [(each.start[8:10], each.group, each.requests, each.errors) for each in found] == [
        ("29", {"tag:job": "ci"}, 1, 1),
        ("29", {"tag:job": "nightly"}, 2, 0),
        ("30", {"tag:job": ""}, 2, 0),
    ]
    assert [(each.amount, each.currency) for each in found[1].settled] == [("0.42000084", "CNY"), ("0.42000084", "USD")]
    assert found[1].tokens == {"input": 6, "output": 2_000_000}
    both = await buckets(filled, "tag:who", "model", "tag:job", team_id="team_a")
    assert [tuple(each.group.values()) for each in both] == [
        ("", "deepseek-chat", "ci"),
        ("ann", "deepseek-chat", "nightly"),
        ("", "deepseek-chat", ""),
        ("ann", "gpt", ""),
    ]


@pytest.mark.parametrize("groups", [("tag:job",), ("tag:who", "tag:job"), ("tag:job", "key", "model"), ("tag:nobody",)])
async def test_they_add_up_to_the_report_without_tags_whatever_the_page(
    filled: AsyncEngine, groups: tuple[str, ...]
) -> None:
    whole = await buckets(filled, "provider")
    for limit in (1, 2, 200):
        found = await buckets(filled, *groups, limit=limit)
        for name in ("requests", "errors", "unpriced", "estimated", "negative_margin"):
            assert sum(getattr(each, name) for each in found) == sum(getattr(each, name) for each in whole)
        for name in ("list", "settled", "policy", "reference", "cost", "margin"):
            assert money(found, name) == money(whole, name)
        assert len({(each.start, *each.group.values()) for each in found}) == len(found)


def money(found: list[UsageBucket], name: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in found:
        for view in getattr(each, name):
            sums[view.currency] = sums.get(view.currency, 0) + Money.parse(view.amount, view.currency).nano
    return sums


async def test_what_was_put_right_is_taken_back_under_its_own_tag(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        team = await create_team(connection, name="acme", settlement_currency="CNY")
        await record_terms(
            connection, base="USD", quote="CNY", policy="fixed", rate="1", team_id=team.id, effective_from_us=START
        )
        rows = [
            rated_record(Usage(output=5), tags={"job": "ci"}, team=team.id, world=FOUNDING),
            rated_record(Usage(output=7), tags={"job": "ci"}, team=team.id, world=FOUNDING),
        ]
        await record(connection, rows)
        await reverse(connection, rows[0].id, request_id(NOON_US), reason="test", actor="ann")
    found = await buckets(database, "tag:job")
    assert [(each.group, each.requests, each.tokens) for each in found] == [({"tag:job": "ci"}, 1, {"output": 7})]


@pytest.mark.parametrize("name", ["tag:", "tag:a b", "tag:a'b", "tag:" + "x" * 65, "job"])
async def test_a_tag_that_cannot_be_is_refused(sqlite_database: AsyncEngine, name: str) -> None:
    with pytest.raises(InvalidQuery) as refusal:
        await buckets(sqlite_database, name)
    assert refusal.value.field == "group_by"


async def test_rule_33_a_range_with_too_many_requests_is_refused(
    filled: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tag_sums, "MOST_ROWS", 4)
    with pytest.raises(InvalidQuery) as refusal:
        await buckets(filled, "tag:job")
    assert refusal.value.field == "end"
