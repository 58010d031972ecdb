"""A budget that callers use up, from their calls to the operator's receiver."""

from __future__ import annotations

import time
from ipaddress import ip_network

import msgspec

from gateway.secret import Secret
from gateway.settings import Settings, WebhookSettings
from gateway.webhooks.signing import HEADER, verify
from tests.gateway.api.conftest import Provisioned, running, until
from tests.gateway.webhooks.receiver import receiving

SECRET = "a long random text"


async def test_calls_that_use_a_budget_up_are_heard_by_the_receiver_once(
    settings: Settings, provisioned: Provisioned
) -> None:
    async with receiving() as receiver:
        webhook = WebhookSettings(url=receiver.url, secret=Secret(SECRET), networks=["127.0.0.0/8"])
        assert webhook.allowed() == (ip_network("127.0.0.0/8"),)
        async with running(msgspec.structs.replace(settings, webhook=webhook)) as gateway:
            gateway.use(provisioned)
            budget = {
                "scope": "key",
                "scope_id": gateway.key_id,
                "amount": "0.000042",
                "currency": "CNY",
                "period": "total",
            }
            created = await gateway.admin("/budgets", {**budget, "hard": False, "thresholds": [50, 100]})
            assert (await gateway.chat("prompt=0;output=60")).status_code == 200

            async def heard() -> bool:
                return len(receiver.got) == 1

            await until(heard, "the first threshold", within_s=20)
            assert (await gateway.chat("prompt=0;output=60")).status_code == 200

            async def both() -> bool:
                return len(receiver.got) >= 2

            await until(both, "the second threshold", within_s=20)
    assert [(each["type"], each["data"]["threshold_percent"]) for each in receiver.events] == [
        ("budget.threshold", 50),
        ("budget.threshold", 100),
    ]
    assert {each["data"]["budget_id"] for each in receiver.events} == {created["id"]}
    for headers, body in receiver.got:
        assert verify(SECRET, body, headers[HEADER], int(time.time()))
