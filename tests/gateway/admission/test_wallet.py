"""A prepaid wallet at the door: balance and credit hold exactly, in memory and on a shared store, and a top-up opens it again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from msgspec import structs

from billing.corrections import reverse
from billing.ledger import record
from billing.money import NANO, Money
from billing.spending import MOST
from billing.teams import update_team
from billing.usage import Usage
from billing.wallet_credits import adjust, top_up
from billing.wallets import balance_nano, check_wallet
from gateway.access.identity import Identity
from gateway.admission import asking, seeding
from gateway.admission.claims import BudgetWindow
from gateway.admission.key_state import WalletLeft, key_state
from gateway.admission.lease import Lease
from gateway.admission.wallet import WALLET_ID, wallet_window
from gateway.errors import ApiError
from gateway.ids import new_request_id
from tests.billing.helpers import rated_record
from tests.gateway.admission.helpers import spent_and_reserved
from tests.gateway.admission.house import FLAT, HALF, UNPRICED, House

COST = 1000 * 280 + 500 * 420
"""What one request of the house reserves, and settles when it uses all of it."""


async def prepaid(house: House, credit_nano: int | None = None) -> Identity:
    """The American team pays beforehand from now on."""
    async with house.database.begin() as connection:
        await update_team(connection, house.american.id, billing="prepaid", credit_limit_nano=credit_nano)
    await house.catalog.refresh()
    return replace(house.key(house.american), prepaid=True)


async def pay(house: House, nano: int, external_id: str = "one") -> None:
    async with house.database.begin() as connection:
        await top_up(
            connection, team_id=house.american.id, external_id=external_id, amount=f"{nano // 10**9}.{nano % 10**9:09}",
            currency="USD", method="card", actor="shop",
        )  # fmt: skip


def wallet(house: House) -> str:
    return wallet_window(house.american.id, "USD").window


async def refused(house: House, key: Identity) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await house.admit(key)
    return caught.value


async def test_rule_11_parallel_requests_against_a_balance_for_23_and_credit_for_7_are_30(house: House) -> None:
    key = await prepaid(house, credit_nano=7 * COST)
    await pay(house, 23 * COST + COST - 1)
    answers = await asyncio.gather(*(house.admit(key) for _ in range(100)), return_exceptions=True)
    leases = [each for each in answers if isinstance(each, Lease)]
    errors = [each for each in answers if isinstance(each, ApiError)]
    assert (len(leases), len(errors)) == (30, 70)
    assert {(each.status, each.code, each.headers["x-should-retry"]) for each in errors} == {
        (402, "budget_exceeded", "false")
    }
    assert errors[0].message == (
        "This team's prepaid wallet has 0.000489999 USD left (its credit limit of 0.00343 USD included), running requests "
        "deducted, and this request could cost 0.00049 USD. Ask for fewer output tokens, or top the wallet up."
    )
    for lease in leases:
        await house.settle(lease, Usage(input=1000, output=500))
    assert await spent_and_reserved(house.admission.store, WALLET_ID, wallet(house)) == (
        30 * COST - (23 * COST + COST - 1),
        0,
    )


async def test_a_wallet_without_money_admits_nothing_and_a_top_up_opens_it_within_a_second(house: House) -> None:
    key = await prepaid(house)
    assert (await refused(house, key)).status == 402
    await pay(house, 2 * COST)
    began = time.monotonic()
    while (await asyncio.gather(house.admit(key), return_exceptions=True))[0] not in house.leases:
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.02)
    assert house.leases[-1].output_cap == 500


async def test_what_settled_counts_once_before_and_after_its_row_is_there(house: House) -> None:
    key = await prepaid(house)
    await pay(house, 10 * COST)
    lease = await house.admit(key)
    await house.settle(lease, Usage(input=1000, output=500))
    assert await spent_and_reserved(house.admission.store, WALLET_ID, wallet(house)) == (-9 * COST, 0)
    row = rated_record(
        Usage(input=1000, output=500), id_=lease.request_id, team=house.american.id, currency="USD",
    )  # fmt: skip
    async with house.database.begin() as connection:
        await record(connection, [row])
        await adjust(connection, team_id=house.american.id, amount="-0.00049", reason="fee", actor="ann")
        assert await balance_nano(connection, house.american.id, "USD") == 8 * COST
    began = time.monotonic()
    while await spent_and_reserved(house.admission.store, WALLET_ID, wallet(house)) != (-8 * COST, 0):
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.02)
    assert (await house.admission.store.unshipped([], 10)).settled == {}


@pytest.mark.interpreted
async def test_money_that_came_in_while_nobody_called_is_there_for_the_first_request(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeding, "ACTIVE_S", 0.0)
    monkeypatch.setattr(asking, "USED_US", 0)
    key = await prepaid(house)
    assert (await refused(house, key)).status == 402
    window = wallet_window(house.american.id, "USD")
    began = time.monotonic()
    while house.admission.seeding.follows(window):  # until it is no longer brought in line every second
        assert time.monotonic() - began < 10
        await asyncio.sleep(0.02)
    await pay(house, COST)
    await house.admit(key)
    assert (await refused(house, key)).status == 402


async def test_a_key_sees_its_wallet_and_what_running_requests_hold(house: House) -> None:
    key = await prepaid(house, credit_nano=10**9)
    await pay(house, 10**9)
    await house.admit(key)
    state = await key_state(house.admission, house.catalog.snapshot, key, time.time_ns() // 1000)
    assert state.wallet == WalletLeft("1", "1", "0.00049", "1.99951", "USD")
    postpaid = house.key(house.chinese)
    state = await key_state(house.admission, house.catalog.snapshot, postpaid, time.time_ns() // 1000)
    assert state.wallet is None


async def test_rule_05_an_unpriced_model_is_refused_and_an_unnamed_cap_is_sent_upstream(house: House) -> None:
    key = await prepaid(house)
    await pay(house, 10**9)
    with pytest.raises(ApiError) as caught:
        await house.admit(key, UNPRICED)
    assert (caught.value.status, caught.value.code) == (403, "model_unpriced")
    assert (await house.admit(key, output_cap=None)).output_cap == 4096


async def test_a_price_per_request_alone_takes_from_the_wallet_what_the_row_takes(house: House) -> None:
    """And a restart gives nothing back. Beside a price of some tokens it prices nothing, and is refused before the call."""
    key = await prepaid(house)
    await pay(house, 10**9)
    for _ in range(2):
        lease = await house.admit(key, FLAT)
        rated = await house.settle(lease, Usage(input=90, output=7), FLAT)
        assert rated.unpriced is None and rated.settled == Money("USD", NANO // 2)
        row = rated_record(Usage(), team=house.american.id, currency="USD", id_=lease.request_id)
        async with house.database.begin() as connection:
            await record(connection, [structs.replace(row, rated=rated)])
            check = await check_wallet(connection, house.american.id)
    assert check.agrees and check.balance_nano == 0
    with pytest.raises(ApiError) as empty:
        await house.admit(key, FLAT)
    assert empty.value.status == 402
    with pytest.raises(ApiError) as refused:
        await house.admit(key, HALF)
    assert (refused.value.status, refused.value.code) == (403, "model_unpriced")


async def test_rule_05_a_charge_beyond_64_bits_exhausts_wallet_and_budget_until_it_is_put_right(house: House) -> None:
    """Law: settled, shipped or read again by a successor, it is the most that an amount can be."""
    key = await prepaid(house)
    await pay(house, 100 * COST)
    budget = await house.budget("1000000", house.american)
    lease = await house.admit(key)
    rated = await house.settle(lease, Usage(output=10**17))
    assert rated.overflow and rated.settled is None
    assert await spent_and_reserved(house.admission.store, budget.id, "0-") == (MOST, 0)
    assert (await spent_and_reserved(house.admission.store, WALLET_ID, wallet(house)))[0] >= MOST
    assert (await refused(house, key)).status == 402
    row = rated_record(Usage(output=10**17), id_=lease.request_id, team=house.american.id, currency="USD")
    async with house.database.begin() as connection:
        await record(connection, [row])

    async def until(spent: tuple[int, int]) -> None:
        deadline = time.monotonic() + 10
        while (await house.admission.store.unshipped([], 10)).settled or (
            await spent_and_reserved(house.admission.store, budget.id, "0-") != spent
        ):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    await until((MOST, 0))
    assert (await refused(house, key)).status == 402
    async with house.database.begin() as connection:
        await reverse(connection, row.id, new_request_id(), reason="a slip of the provider", actor="ops")
    await until((0, 0))
    await house.admit(key)


async def test_rule_13_a_worst_case_beyond_64_bits_is_refused(house: House) -> None:
    with pytest.raises(ApiError) as caught:
        await house.admit(house.key(house.american), input_tokens=10**17)
    assert (caught.value.status, caught.value.code) == (400, "amount_too_large")


async def test_a_key_is_told_what_its_budget_was_charged_while_nobody_called(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was lost becomes a row long after it was sent, and settles nothing in the store."""
    monkeypatch.setattr(seeding, "ACTIVE_S", 0.0)
    monkeypatch.setattr(asking, "USED_US", 0)
    budget, key = await house.budget("1", house.american, currency="USD"), house.key(house.american)
    lease = await house.admit(key)
    window = BudgetWindow(budget.id, lease.claim.charges[0].window)
    began = time.monotonic()
    while house.admission.seeding.follows(window):
        assert time.monotonic() - began < 10
        await asyncio.sleep(0.02)
    lost = rated_record(Usage(input=1000), id_=lease.request_id, team=house.american.id, currency="USD")
    async with house.database.begin() as connection:
        await record(connection, [lost])
    (left,) = (await key_state(house.admission, house.catalog.snapshot, key, lease.at_us)).budgets
    assert (left.spent, left.reserved) == ("0.00028", "0.00049")
