"""A request that was answered and has no amount is not free: its reservation stands for it in every budget."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from billing.corrections import reverse
from billing.ledger import record
from billing.teams import update_team
from billing.usage import Usage
from billing.wallet_credits import top_up
from gateway.access.identity import Identity
from gateway.admission import counted
from gateway.admission.wallet import WALLET_ID, wallet_window
from gateway.errors import ApiError
from gateway.ids import new_request_id
from tests.billing.helpers import rated_record
from tests.gateway.admission.helpers import spent_and_reserved
from tests.gateway.admission.house import House

COST = 1000 * 280 + 500 * 420
"""What one request of the house reserves."""
NO_PRICE = Usage(input=10, output=5, audio_output=7)
"""Priced in part: the book has no row for audio."""


async def prepaid(house: House) -> Identity:
    async with house.database.begin() as connection:
        await update_team(connection, house.american.id, billing="prepaid")
        await top_up(
            connection, team_id=house.american.id, external_id="one", amount="1", currency="USD", method="card", actor="shop"
        )  # fmt: skip
    await house.catalog.refresh()
    return replace(house.key(house.american), prepaid=True)


async def test_what_cannot_be_rated_or_priced_counts_its_reservation_everywhere(house: House) -> None:
    key = await prepaid(house)
    team = await house.budget("1", house.american)
    own = await house.budget("1", scope="key", scope_id=key.key_id, currency="USD")
    everybody = await house.budget("1", scope="all", scope_id=None, currency="USD")
    wallet = wallet_window(house.american.id, "USD").window
    lease = await house.admit(key)
    reserved = {charge.budget_id: charge.amount_nano for charge in lease.claim.charges}
    assert reserved == {team.id: COST, own.id: COST, everybody.id: reserved[everybody.id], WALLET_ID: COST}
    assert reserved[everybody.id] >= COST
    await house.admission.settle(lease, rated=None, tokens=15)
    lease = await house.admit(key)
    assert (await house.settle(lease, NO_PRICE)).settled is None
    for budget_id, nano in reserved.items():
        window = wallet if budget_id == WALLET_ID else "0-"
        paid = 10**9 if budget_id == WALLET_ID else 0
        assert await spent_and_reserved(house.admission.store, budget_id, window) == (2 * nano - paid, 0)


async def test_what_is_known_of_it_counts_where_that_is_more(house: House) -> None:
    budget = await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american))
    rated = await house.settle(lease, Usage(input=10, output=50_000, audio_output=7))
    assert rated.settled is None
    known = 10 * 280 + 50_000 * 420
    assert await spent_and_reserved(house.admission.store, budget.id, "0-") == (known, 0)


async def test_a_hard_budget_has_no_room_beside_it_until_the_row_says_what_it_was(house: House) -> None:
    budget = await house.budget("0.00049", house.american)
    key = house.key(house.american)
    lease = await house.admit(key)
    await house.admission.settle(lease, rated=None, tokens=0)
    with pytest.raises(ApiError) as caught:
        await house.admit(key)
    assert caught.value.code == "budget_exceeded"
    row = rated_record(Usage(output=100), id_=lease.request_id, team=house.american.id, key=key.key_id, currency="USD")
    async with house.database.begin() as connection:
        await record(connection, [row])
    deadline = time.monotonic() + 10
    while await spent_and_reserved(house.admission.store, budget.id, "0-") != (100 * 420, 0):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_row_without_an_amount_counts_its_reservation_until_it_is_corrected(house: House) -> None:
    """Rule 5: a class that nobody has priced never passes a budget as zero."""
    budget = await house.budget("0.00098", house.american)
    key = house.key(house.american)
    lease = await house.admit(key)
    assert (await house.settle(lease, NO_PRICE)).settled is None
    priced = await house.admit(key)
    await house.settle(priced, Usage(output=3))
    rows = [
        rated_record(each, id_=of.request_id, team=house.american.id, key=key.key_id, currency="USD")
        for each, of in ((NO_PRICE, lease), (Usage(output=3), priced))
    ]
    async with house.database.begin() as connection:
        await record(connection, rows)

    async def until(left: set[UUID]) -> None:
        deadline = time.monotonic() + 10
        while set((await house.admission.store.unshipped([], 10)).settled) != left:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    await until({lease.request_id})
    assert await spent_and_reserved(house.admission.store, budget.id, "0-") == (COST + 3 * 420, 0)
    with pytest.raises(ApiError):
        await house.admit(key)
    async with house.database.begin() as connection:
        await reverse(connection, lease.request_id, new_request_id(), reason="the price is mended", actor="ops")
    await until(set())
    assert await spent_and_reserved(house.admission.store, budget.id, "0-") == (3 * 420, 0)


async def test_so_many_rows_without_an_amount_are_held_and_no_more(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "MOST_HELD", 2)
    await house.budget("1", house.american)
    key = house.key(house.american)
    leases = [await house.admit(key) for _ in range(4)]
    for lease in leases:
        await house.settle(lease, NO_PRICE)
    async with house.database.begin() as connection:
        given: dict[str, Any] = {"team": house.american.id, "key": key.key_id, "currency": "USD"}
        await record(connection, [rated_record(NO_PRICE, id_=lease.request_id, **given) for lease in leases])
    deadline = time.monotonic() + 10
    while set((await house.admission.store.unshipped([], 10)).settled) != {each.request_id for each in leases[2:]}:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
