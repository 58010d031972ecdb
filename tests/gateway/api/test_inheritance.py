"""What a process that was killed had spent and not yet shipped is spent: its successor counts it before it admits."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from billing.usage import Usage
from gateway.ids import new_request_id
from gateway.metering.journal import Journal
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed
from gateway.services import Services
from gateway.settings import Settings
from tests.gateway.api.conftest import Gateway, Provisioned, running, until

OUTPUT = 1_000_000
CALLS = 40
SPENT = "16.8"
"""40 calls of a million output tokens at 0.42 each."""


def die_with_backlog(settings: Settings, provisioned: Provisioned, services: Services) -> None:
    """The journal of a process that answered `CALLS` calls of the team, and shipped none of them."""
    snapshot = services.catalog.snapshot
    journal = Journal(settings.home / "journal", settings.journal)
    for _ in range(CALLS):
        request_id, at_us = new_request_id().bytes, time.time_ns() // 1000
        journal.open(
            AttemptOpened(
                request_id,
                1,
                at_us,
                provisioned.team_id,
                provisioned.key_id,
                "CNY",
                "chat",
                "m",
                "up",
                "up",
                "up-m",
                False,
                {},
                snapshot.pins,
                Usage(output=OUTPUT),
            )
        )
        outcome = AttemptOutcome(1, "completed", Usage(output=OUTPUT), 1000)
        journal.close(RequestClosed(request_id, at_us, "completed", 1, False, (outcome,), 1000))
    journal.stop()


@contextmanager
def database_held(settings: Settings) -> Iterator[sqlite3.Connection]:
    """Nobody can write until the block ends, or `rollback` is called."""
    connection = sqlite3.connect(settings.database_url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.close()


@dataclass(frozen=True)
class Limited:
    """`by` a budget or a wallet. Nothing limits the `other_key`."""

    by: str
    other_key: str


async def budget_of(gateway: Gateway) -> dict[str, str] | None:
    answer = await gateway.client.get("/v1/key")
    if answer.status_code == 503:
        return None
    budget: dict[str, str] = answer.json()["budgets"][0]
    return budget


async def is_ready(gateway: Gateway) -> bool:
    return (await gateway.client.get("/health/ready")).status_code == 200


@pytest.fixture(params=["budget", "wallet"])
async def limited(request: pytest.FixtureRequest, settings: Settings, provisioned: Provisioned) -> Limited:
    """The team has exactly what the dead process spent of it; the process is dead, its journal is not shipped."""
    async with running(settings) as gateway:
        gateway.use(provisioned)
        if request.param == "budget":
            budget = {"scope": "team", "scope_id": gateway.team_id, "amount": SPENT, "currency": "CNY", "hard": True}
            await gateway.admin("/budgets", {**budget, "period": "day", "timezone": "UTC"})
        else:
            path = f"/admin/v1/teams/{gateway.team_id}"
            changed = await gateway.operator.patch(path, json={"billing": "prepaid"})
            assert changed.status_code == 200, changed.text
            top_up = {"amount": SPENT, "currency": "CNY", "external_id": "a", "method": "bank"}
            await gateway.admin(f"/wallets/{gateway.team_id}/top-ups", top_up)
        assert (await gateway.chat(max_tokens=1)).status_code == 200
        services = gateway.services
        team = await gateway.admin("/teams", {"name": "free", "settlement_currency": "USD"})
        other = await gateway.admin("/keys", {"team_id": team["id"], "name": "free"})
    die_with_backlog(settings, provisioned, services)
    return Limited(str(request.param), other["key"])


async def test_rule_12_what_a_killed_process_had_spent_is_counted_before_anything_is_admitted(
    limited: Limited, settings: Settings, provisioned: Provisioned
) -> None:
    async with running(settings) as gateway:
        gateway.use(provisioned)
        first = await gateway.chat(max_tokens=1)
        assert (first.status_code, first.json()["error"]["code"]) == (402, "budget_exceeded")
        await until(lambda: is_ready(gateway), "the gateway")
        if limited.by == "budget":
            budget = await budget_of(gateway)
            assert budget is not None and float(budget["spent"]) >= float(SPENT)


async def test_rule_26_a_hard_budget_waits_while_the_backlog_of_the_dead_cannot_be_shipped(
    limited: Limited, settings: Settings, provisioned: Provisioned
) -> None:
    """Nothing is let through on a sum that lacks it; callers without a hard budget do not wait."""
    with database_held(settings) as held:
        async with running(settings) as gateway:
            gateway.use(provisioned)
            free = await gateway.chat(max_tokens=1, headers={"authorization": f"Bearer {limited.other_key}"})
            assert free.status_code == 200
            answers: list[httpx.Response] = [await gateway.chat(max_tokens=1) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [503] * 3
            assert {answer.json()["error"]["code"] for answer in answers} == {"limits_unavailable"}
            assert not await is_ready(gateway)
            held.rollback()
            await until(lambda: is_ready(gateway), "the backlog to be shipped", 20)
            assert (await gateway.chat(max_tokens=1)).status_code == 402
