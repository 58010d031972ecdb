"""Verbs against a real gateway: what they send is what is stored, and what they print is what the API says."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.e2e.product import Product
from tests.gateway.dashboard.world import ADMIN_KEY, World, build, serving

Json = dict[str, Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build(tmp_path_factory.mktemp("world"), "http://127.0.0.1:9", requests=60)


@pytest.fixture(scope="module")
def product(world: World) -> Iterator[Product]:
    with serving(world) as product:
        (product.home / "admin-key").write_text(ADMIN_KEY)
        yield product


def as_json(product: Product, *arguments: str) -> Any:
    return json.loads(product.metergate(*arguments, "--json"))


def test_a_range_is_a_focus_file_whose_sum_is_the_report_s(product: Product, world: World) -> None:
    text = product.metergate("usage", "focus", "--team", world.search, "--interval", "month")
    rows = list(csv.DictReader(io.StringIO(text)))
    lines = product.metergate("usage", "focus", "--team", world.search, "--json").splitlines()
    objects = [json.loads(line) for line in lines]
    report = as_json(product, "usage", "report", "--group-by", "team", "--interval", "day")
    mine = [row["settled"][0]["amount"] for row in report if row["group"]["team"] == world.search]
    settled = sum(map(Decimal, mine), Decimal(0))
    assert sum(Decimal(row["BilledCost"]) for row in rows) == settled
    assert sum(Decimal(row["BilledCost"]) for row in objects) == settled
    assert {row["SubAccountId"] for row in objects} == {None}
    refused = product.metergate("usage", "focus", "--timezone", "Mars/Olympus", expect=1)
    assert refused.startswith("metergate: timezone: ")


def test_requests_are_listed_with_their_time_and_key(product: Product, world: World) -> None:
    shown = product.metergate("usage", "requests", "--team", world.search, "--limit", "3")
    header, *rows = shown.splitlines()
    assert header.split()[:4] == ["at", "id", "team_id", "key_id"]
    assert len(rows) == 3
    for row in rows:
        at, _, team, key = row.split()[:4]
        assert at.startswith("20") and at.endswith("Z")
        assert team == world.search and key in world.keys.values()
    (newest,) = as_json(product, "usage", "requests", "--limit", "1")
    assert as_json(product, "usage", "requests", "--start", newest["at"], "--limit", "5")[0]["id"] == newest["id"]


def test_an_edit_changes_what_is_named_and_nothing_else(product: Product, world: World) -> None:
    made = as_json(
        product, "key", "create", world.ads, "edited", "--requests-per-minute", "60", "--max-parallel", "8",
        "--model", "gpt-4.1", "--tag", "env=ci", "--model-limit", "gpt-4.1:requests_per_minute=5,max_parallel=1",
    )  # fmt: skip
    assert made["model_limits"]["gpt-4.1"]["requests_per_minute"] == 5
    changed = as_json(product, "key", "edit", made["id"], "--max-parallel", "none", "--model", "any", "--name", "other")
    assert changed["limits"] == {"requests_per_minute": 60, "tokens_per_minute": None, "max_parallel": None}
    assert (changed["models"], changed["name"], changed["tags"]) == (None, "other", {"env": "ci"})
    assert as_json(product, "key", "show", made["id"]) == changed
    assert "is no whole number" in product.metergate("key", "edit", made["id"], "--max-parallel", "many", expect=2)

    before = as_json(product, "team", "show", world.ads)
    after = as_json(product, "team", "edit", world.ads, "--lost-charge", "none")
    assert after == {**before, "lost_charge": "none"}


def test_budgets_of_a_team_are_listed_and_one_is_shown(product: Product, world: World) -> None:
    rows = as_json(product, "budget", "list", "--team", world.search)
    assert {row["scope_id"] for row in rows} == {world.search, world.keys["batch"]}
    one = as_json(product, "budget", "show", str(rows[0]["id"]))
    assert one["id"] == rows[0]["id"]
    assert Decimal(one["remaining"]) <= Decimal(one["amount"])


def test_who_asks_and_how_the_routes_are(product: Product) -> None:
    assert as_json(product, "token", "whoami") == {"name": "admin", "role": "owner", "team_id": None}
    rows = as_json(product, "routes")
    assert {row["model"] for row in rows} == {"deepseek-chat", "gpt-4.1", "in-house"}
    assert {row["health"] for row in rows} <= {"up", "probing", "tripped", "saturated", "starting"}


def test_rule_06_drift_is_an_exit_status_until_it_is_acknowledged(product: Product, world: World) -> None:
    known = world.home / "known.yaml"
    assert "genai-prices: compared" in product.metergate("price", "drift", expect=1)
    product.metergate("price", "drift", "--known", str(known), "--acknowledge", "negotiated")
    assert "new" not in product.metergate("price", "drift", "--known", str(known)).split()
    known.write_bytes(b"\xff")
    nowhere = str(known.parent / "none" / "known.yaml")
    for said, args in (("read", (str(known),)), ("written", (nowhere, "--acknowledge", "x"))):
        refused = product.metergate("price", "drift", "--known", *args, expect=1)
        assert f"it cannot be {said}" in refused and "Traceback" not in refused
