"""What happens to wallets by itself, on both databases: credit expires, and a low balance is heard once."""

from __future__ import annotations

from ipaddress import ip_network

from billing.wallets import WalletEvent
from gateway.metrics import Metrics
from gateway.secret import Secret
from gateway.wallets import WalletKeeper, through
from gateway.webhooks.sender import Sender
from gateway.webhooks.webhooks import Webhooks
from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.admin.test_wallets import paid
from tests.gateway.webhooks.receiver import receiving


async def test_a_low_balance_is_heard_once_by_whoever_listens(gateway: Gateway, operator: Operator) -> None:
    team, heard, metrics = await operator.team(), list[WalletEvent](), Metrics()
    keeper = WalletKeeper(gateway.database, metrics, heard.append)
    await keeper.round(0)
    await operator.post(f"/wallets/{team}/top-ups", paid(amount="1"))
    assert (await operator.patch(f"/wallets/{team}", {"low_balance": "10"}))["is_low"] is True
    for _ in range(2):
        await keeper.round(1)
    assert [(each.team_id, each.kind, each.balance_nano) for each in heard] == [(team, "low_balance", 10**9)]
    assert metrics.registry.get_sample_value("metergate_wallets_low") == 1
    await operator.post(f"/wallets/{team}/top-ups", paid(external_id="2"))
    await keeper.round(2)
    assert [each.kind for each in heard] == ["low_balance", "restored"]
    assert metrics.registry.get_sample_value("metergate_wallets_low") == 0
    events = (await operator.get(f"/wallets/{team}/events"))["data"]
    assert [(each["kind"], each["balance"], each["threshold"]) for each in events] == [
        ("low_balance", "1", "10"),
        ("restored", "101", "10"),
    ]


async def test_a_fall_and_a_return_are_sent_once_however_many_processes_see_them(
    gateway: Gateway, operator: Operator
) -> None:
    team = await operator.team()
    await operator.post(f"/wallets/{team}/top-ups", paid(amount="1"))
    await operator.patch(f"/wallets/{team}", {"low_balance": "10"})
    async with receiving() as receiver:
        for number in range(3):  # three processes, one of which starts late: the fall is told by those that were there
            sender = Sender(receiver.url, Secret("a secret"), (ip_network("127.0.0.0/8"),))
            webhooks = Webhooks(gateway.database, Metrics(), sender)
            keeper = WalletKeeper(gateway.database, Metrics(), through(webhooks))
            await keeper.round(1)
            await webhooks.round()
            if number == 1:
                await operator.post(f"/wallets/{team}/top-ups", paid(external_id="2"))
                await keeper.round(2)
                await webhooks.round()
            await webhooks.stop()
    assert [(each["type"], each["data"]["team_id"], each["data"]["balance"]) for each in receiver.events] == [
        ("wallet.low_balance", team, "1"),
        ("wallet.restored", team, "101"),
    ]
    assert {each["data"]["threshold"] for each in receiver.events} == {"10"}


async def test_the_keeper_books_off_what_expired(gateway: Gateway, operator: Operator) -> None:
    team = await operator.team()
    credit = await operator.post(f"/wallets/{team}/top-ups", paid(expires_at="2090-01-01T00:00:00Z"))
    keeper = WalletKeeper(gateway.database, Metrics(), round_s=0.01)
    at_us = 3_786_912_000_000_000  # 2090-01-01
    await keeper.round(at_us - 1)
    assert (await operator.get(f"/wallets/{team}"))["balance"] == "100"
    await keeper.round(at_us)
    await keeper.round(at_us + 1)
    assert (await operator.get(f"/wallets/{team}"))["balance"] == "0"
    last = (await operator.get(f"/wallets/{team}/entries"))["data"][0]
    assert (last["kind"], last["amount"], last["credit"]) == ("expiry", "-100", credit["id"])
    keeper.start()
    await keeper.stop()
