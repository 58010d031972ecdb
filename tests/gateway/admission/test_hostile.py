"""What callers and operators do to get more than there is, or at the wrong moment: each against either store."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert

from billing.budgets import MOST_AT_ONCE, create_budget, end_budget
from billing.errors import InvalidBudget
from billing.ledger import record
from billing.tables import budgets
from billing.teams import update_team
from billing.times import DAY_US, now_us
from billing.usage import Usage
from billing.wallets import balance_nano
from gateway.access.identity import Identity
from gateway.admission import asking, seeding
from gateway.admission.claims import BudgetWindow
from gateway.admission.key_state import key_state
from gateway.errors import ApiError
from gateway.ids import new_request_id
from tests.billing.helpers import rated_record
from tests.gateway.admission.helpers import spent_and_reserved
from tests.gateway.admission.house import House, Priced

COST = 1000 * 280 + 500 * 420
"""What one request of the house reserves."""
FREE = Priced("free", "free")


async def refused(house: House, key: Identity, *routes: Priced, **changes: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await house.admit(key, *routes, **changes)
    return caught.value


async def shipped(house: House, request_id: object, output: int) -> None:
    row = rated_record(Usage(output=output), id_=request_id, team=house.american.id, currency="USD")  # type: ignore[arg-type]
    async with house.database.begin() as connection:
        await record(connection, [row])


async def test_a_caller_with_one_nano_left_gets_only_what_is_free(house: House) -> None:
    budget = await house.budget("0.000490001", house.american)
    key = house.key(house.american)
    lease = await house.admit(key)
    error = await refused(house, key, input_tokens=1, output_cap=0)
    assert error.code == "budget_exceeded"
    assert "has 0.000000001 USD left" in error.message
    await house.admit(key, FREE, input_tokens=10**9)
    await house.settle(lease, Usage(input=1000, output=500))
    assert (await refused(house, key, input_tokens=1, output_cap=0)).code == "budget_exceeded"
    assert await spent_and_reserved(house.admission.store, budget.id, "0-") == (COST, 0)


async def test_choices_multiply_the_reservation_and_do_not_slip_through_in_parallel(house: House) -> None:
    budget = await house.budget("0.001", house.american)
    key = house.key(house.american)
    assert (await refused(house, key, n=128)).code == "budget_exceeded"
    lease = await house.admit(key, n=3)
    assert await spent_and_reserved(house.admission.store, budget.id, "0-") == (0, 1000 * 280 + 3 * 500 * 420)
    answers = await asyncio.gather(*(house.admit(key, n=3) for _ in range(20)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {ApiError}
    await house.admission.release(lease)


async def test_every_budget_that_may_bound_a_request_is_reserved_and_given_back(house: House) -> None:
    """As many as there may be: over the key, over its team, over everybody."""
    key = house.key(house.american)
    scopes: list[tuple[str, str | None]] = [("key", key.key_id), ("team", house.american.id), ("all", None)]
    async with house.database.begin() as connection:
        for scope, scope_id in scopes:
            given: dict[str, Any] = {"scope": scope, "scope_id": scope_id, "currency": "USD", "period": "total"}
            for _ in range(MOST_AT_ONCE):
                await create_budget(connection, amount="1", **given)
            with pytest.raises(InvalidBudget, match="end one first"):
                await create_budget(connection, amount="1", **given)
    await house.catalog.refresh()
    lease = await house.admit(key)
    assert len(lease.claim.charges) == 3 * MOST_AT_ONCE
    await house.settle(lease, Usage(input=1000, output=500))
    for charge in lease.claim.charges[:: MOST_AT_ONCE // 4]:
        assert await spent_and_reserved(house.admission.store, charge.budget_id, "0-") == (COST, 0)


async def test_ten_thousand_budgets_of_others_are_nobody_elses_business(house: House) -> None:
    rows = [
        {
            "scope": "key", "scope_id": f"key_{number}", "amount_nano": 1, "currency": "USD", "period": "day",
            "timezone": "Asia/Kolkata", "hard": True, "created_at_us": 1,
        }
        for number in range(10_000)
    ]  # fmt: skip
    async with house.database.begin() as connection:
        await connection.execute(insert(budgets), rows)
    own = await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american))
    assert [charge.budget_id for charge in lease.claim.charges] == [own.id]
    assert (await refused(house, house.key(house.american, key_id="key_77"))).code == "budget_exceeded"


async def test_a_budget_made_while_a_request_runs_counts_that_request_when_its_row_is_there(house: House) -> None:
    key = house.key(house.american)
    running = await house.admit(key)
    assert running.claim.charges == ()
    budget = await house.budget("0.0007", house.american, period="day")
    await house.settle(running, Usage(output=900))
    await shipped(house, running.request_id, 900)
    error = await refused(house, key)
    assert "has 0.000322 USD left" in error.message
    other = await house.admit(key, output_cap=50)
    window = other.claim.charges[0].window
    assert await spent_and_reserved(house.admission.store, budget.id, window) == (900 * 420, 1000 * 280 + 50 * 420)


async def test_a_budget_lowered_below_what_is_spent_refuses_at_once_and_breaks_nothing_that_runs(house: House) -> None:
    key = house.key(house.american)
    old = await house.budget("1", house.american)
    done, running = await house.admit(key), await house.admit(key)
    await house.settle(done, Usage(input=1000, output=500))
    await shipped(house, done.request_id, 500)
    async with house.database.begin() as connection:
        await end_budget(connection, old.id)
    new = await house.budget("0.0001", house.american)
    assert (await refused(house, key)).code == "budget_exceeded"
    await house.settle(running, Usage(input=1000, output=500))
    state = await key_state(house.admission, house.catalog.snapshot, key, now_us())
    (left,) = state.budgets
    assert (left.id, left.amount, left.remaining, left.reserved) == (new.id, "0.0001", "0", "0")
    assert (await spent_and_reserved(house.admission.store, old.id, "0-"))[1] == 0


async def test_a_team_that_becomes_prepaid_while_a_request_runs_pays_it_from_its_wallet(house: House) -> None:
    postpaid = house.key(house.american)
    running = await house.admit(postpaid)
    async with house.database.begin() as connection:
        await update_team(connection, house.american.id, billing="prepaid")
    await house.catalog.refresh()
    key = replace(postpaid, prepaid=True)
    assert (await refused(house, key)).code == "budget_exceeded"
    await house.settle(running, Usage(output=100))
    await shipped(house, running.request_id, 100)
    async with house.database.connect() as connection:
        assert await balance_nano(connection, house.american.id, "USD") == -100 * 420
    deadline = time.monotonic() + 10
    while (await key_state(house.admission, house.catalog.snapshot, key, now_us())).wallet.balance != "-0.000042":  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    async with house.database.begin() as connection:
        await update_team(connection, house.american.id, billing="postpaid")
    await house.catalog.refresh()
    await house.admit(postpaid)


async def test_a_clock_that_steps_over_midnight_and_back_counts_each_day_by_itself(house: House) -> None:
    """A request belongs to the day of its id, whenever it settles."""
    budget = await house.budget("0.0006", house.american, period="day", timezone="Asia/Kolkata")
    key, today_us = house.key(house.american), now_us()
    before = await house.admit(key, at_us=today_us - DAY_US)
    now = await house.admit(key, at_us=today_us)
    again = await refused(house, key, at_us=today_us - DAY_US)
    assert again.code == "budget_exceeded"
    assert (await refused(house, key, at_us=today_us)).code == "budget_exceeded"
    windows = [lease.claim.charges[0].window for lease in (before, now)]
    assert windows[0] != windows[1]
    await house.settle(before, Usage(output=1))
    await house.settle(now, Usage(output=2))
    store = house.admission.store
    assert [await spent_and_reserved(store, budget.id, window) for window in windows] == [(420, 0), (840, 0)]


async def test_what_came_while_nobody_called_counts_for_all_who_call_first(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that a dead process lost becomes a row later, and a budget out of use has not heard of it."""
    monkeypatch.setattr(seeding, "ACTIVE_S", 0.0)
    budget = await house.budget("0.00049", house.american)
    key = house.key(house.american)
    lease = await house.admit(key)
    await house.admission.release(lease)
    window = BudgetWindow(budget.id, lease.claim.charges[0].window)
    deadline = time.monotonic() + 10
    while house.admission.seeding.follows(window):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await shipped(house, new_request_id(), 1)
    later_us = now_us() + asking.USED_US + 1
    answers = await asyncio.gather(*(house.admit(key, at_us=later_us) for _ in range(10)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {ApiError}
