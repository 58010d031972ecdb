"""What a request meets at the door: prices, caps, budgets and limits together, with real books and a real database."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from billing.ledger import record
from billing.usage import Usage
from gateway.admission import seeding
from gateway.admission.claims import BudgetWindow
from gateway.admission.key_state import BudgetLeft, Remaining, key_state
from gateway.admission.lease import Lease
from gateway.admission.limits import Limits
from gateway.admission.memory import MemoryStore
from gateway.admission.reservation import ROUNDING_NANO
from gateway.api.asgi import headers_of
from gateway.errors import ApiError
from gateway.ids import new_request_id
from tests.billing.helpers import rated_record
from tests.gateway.admission.helpers import spent_and_reserved
from tests.gateway.admission.house import CHEAP, DEAR, EURO, PICTURES, UNPRICED, House, Priced, model

FREE = Priced("free", "free")


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(sqlite_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def house(database: AsyncEngine) -> AsyncIterator[House]:
    built = await House.build(database, MemoryStore())
    yield built
    await built.admission.stop()


async def refusal(house: House, *arguments: object, **named: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await house.admit(*arguments, **named)  # type: ignore[arg-type]
    return caught.value


async def test_the_reservation_is_the_worst_case_and_the_settlement_the_actual(house: House) -> None:
    row = await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american))
    assert lease.reserved == Usage(input=1000, output=500)
    assert lease.output_cap == 500
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (0, 1000 * 280 + 500 * 420)
    await house.settle(lease, Usage(input=400, cache_read=600, output=20))
    await house.settle(lease, Usage(input=400, cache_read=600, output=20))
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (400 * 280 + 600 * 28 + 20 * 420, 0)


async def test_the_dearest_candidate_and_its_dearest_input_class_are_reserved(house: House) -> None:
    row = await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american), CHEAP, DEAR)
    assert lease.routes == (CHEAP, DEAR)
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (0, 1000 * 6000 + 500 * 15000)


async def test_a_dearer_fallback_that_does_not_fit_is_left_out(house: House) -> None:
    await house.budget("0.001", house.american)
    lease = await house.admit(house.key(house.american), CHEAP, DEAR)
    assert lease.routes == (CHEAP,)
    assert not await house.admission.amend(lease, DEAR)
    assert lease.routes == (CHEAP,)


async def test_a_fallback_beyond_the_reservation_amends_the_lease(house: House) -> None:
    row = await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american), CHEAP)
    assert await house.admission.amend(lease, DEAR)
    assert lease.routes == (CHEAP, DEAR)
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (0, 1000 * 6000 + 500 * 15000)
    await house.settle(lease, Usage(input=1000, output=500), DEAR)
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (1000 * 3000 + 500 * 15000, 0)


async def test_a_chinese_team_reserves_in_its_own_currency_with_a_nano_for_each_rounding(house: House) -> None:
    async with house.database.begin() as connection:
        from billing.recording import record_terms

        await record_terms(
            connection,
            team_id=house.chinese.id,
            base="USD",
            quote="CNY",
            policy="fixed",
            rate="7.123456789",
            effective_from_us=time.time_ns() // 1000 - 1_000_000,
        )
    row = await house.budget("1", house.chinese)
    lease = await house.admit(house.key(house.chinese), input_tokens=3, output_cap=0)
    worst = -(-3 * 280 * 7_123_456_789 // 1_000_000_000) + ROUNDING_NANO
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (0, worst)
    rated = await house.settle(lease, Usage(input=2, cache_read=1))
    assert rated.settled is not None
    assert 0 < rated.settled.nano <= worst


async def test_rule_11_a_thousand_parallel_requests_with_room_for_137_get_137(house: House) -> None:
    cost = 1000 * 280 + 500 * 420
    limit = 137 * cost + cost - 1
    row = await house.budget(f"0.{limit:09d}", house.american)
    key = house.key(house.american)
    answers = await asyncio.gather(*(house.admit(key) for _ in range(1000)), return_exceptions=True)
    leases = [each for each in answers if isinstance(each, Lease)]
    refused = [each for each in answers if isinstance(each, ApiError)]
    assert (len(leases), len(refused)) == (137, 863)
    assert {(each.status, each.code, each.headers["x-should-retry"]) for each in refused} == {
        (402, "budget_exceeded", "false")
    }
    for lease in leases:
        await house.settle(lease, Usage(input=1000, output=500))
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (137 * cost, 0)


async def test_rule_13_no_max_tokens_reserves_the_configured_default_and_sends_it_upstream(house: House) -> None:
    await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american), output_cap=None)
    assert (lease.reserved.output, lease.output_cap) == (4096, 4096)
    small = await house.admit(house.key(house.american), output_cap=None, model=model(most=1000))
    assert (small.reserved.output, small.output_cap) == (1000, 1000)


async def test_rule_13_without_a_hard_budget_nothing_is_capped_upstream(house: House) -> None:
    await house.budget("1", house.american, hard=False)
    lease = await house.admit(house.key(house.american), output_cap=None)
    assert (lease.reserved.output, lease.output_cap) == (4096, None)


async def test_rule_13_an_absurd_max_tokens_is_clamped_to_the_models_maximum(house: House) -> None:
    await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american), output_cap=10**12, n=2)
    assert (lease.reserved.output, lease.output_cap) == (2 * 8192, 8192)
    unknown = await house.admit(house.key(house.american), output_cap=10**12, model=model(most=None))
    assert (unknown.reserved.output, unknown.output_cap) == (131_072, 131_072)


async def test_rule_13_a_default_reserve_alone_makes_no_request_too_large_for_its_token_limit(house: House) -> None:
    lease = await house.admit(house.key(house.american, Limits(tokens_per_minute=2000)), output_cap=None)
    assert b"x-ratelimit-remaining-tokens: 0\r\n" in lease.lines
    await house.settle(lease, Usage(input=1000, output=3))
    other = await refusal(house, house.key(house.american, Limits(tokens_per_minute=2000)), output_cap=1001)
    assert (other.status, other.headers["x-should-retry"]) == (429, "false")
    assert "ask for fewer tokens" in other.message


async def test_rule_05_an_unpriced_model_is_refused_under_a_hard_budget_and_from_a_prepaid_wallet(house: House) -> None:
    lease = await house.admit(house.key(house.american), UNPRICED)
    await house.admission.release(lease)
    prepaid = await refusal(house, house.key(house.american, prepaid=True), UNPRICED)
    assert (prepaid.status, prepaid.code) == (403, "model_unpriced")
    await house.budget("1", house.american)
    hard = await refusal(house, house.key(house.american), UNPRICED)
    assert (hard.status, hard.code, hard.param) == (403, "model_unpriced", "model")
    beside = await house.admit(house.key(house.american), UNPRICED, CHEAP)
    assert beside.routes == (CHEAP,)


async def test_rule_11_what_only_the_answer_counts_is_refused_where_a_worst_case_is_needed(house: House) -> None:
    lease = await house.admit(house.key(house.american), PICTURES)
    await house.admission.release(lease)
    prepaid = await refusal(house, house.key(house.american, prepaid=True), PICTURES)
    assert (prepaid.status, prepaid.code) == (403, "model_unbounded")
    await house.budget("1", house.american)
    hard = await refusal(house, house.key(house.american), PICTURES)
    assert (hard.status, hard.code) == (403, "model_unbounded") and "price per request" in hard.message
    beside = await house.admit(house.key(house.american), PICTURES, CHEAP)
    assert beside.routes == (CHEAP,)


async def test_rule_05_a_model_priced_zero_on_purpose_blocks_nobodys_budget(house: House) -> None:
    row = await house.budget("0", house.american)
    lease = await house.admit(house.key(house.american), FREE)
    await house.settle(lease, Usage(input=1000, output=500), FREE)
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (0, 0)
    assert (await refusal(house, house.key(house.american), CHEAP)).status == 402


async def test_a_currency_without_terms_is_refused_not_guessed(house: House) -> None:
    error = await refusal(house, house.key(house.chinese), EURO)
    assert (error.status, error.code) == (403, "currency_not_settleable")
    assert "EUR" in error.message
    assert "CNY" in error.message
    assert "record settlement terms" in error.message
    assert (await house.admit(house.key(house.chinese), EURO, CHEAP)).routes == (CHEAP,)


async def test_a_key_may_use_only_the_models_of_its_list(house: House) -> None:
    key = house.key(house.american, models=frozenset({"other"}))
    assert (await refusal(house, key)).code == "model_not_allowed"
    await house.admit(house.key(house.american, models=frozenset({"chat"})))


async def test_every_budget_in_scope_must_have_room(house: House) -> None:
    await house.rate("USD", "EUR", "0.9")
    team = await house.budget("1", house.chinese)
    key = await house.budget("1", scope="key", scope_id="key_search", currency="CNY")
    everything = await house.budget(
        "0.000700000", scope="all", scope_id=None, currency="EUR", period="day", timezone="Asia/Kolkata"
    )
    lease = await house.admit(house.key(house.chinese))
    window = lease.claim.charges[2].window
    store = house.admission.store
    assert [await spent_and_reserved(store, each.id, "0-") for each in (team, key)] == [(0, 490_000)] * 2
    assert await spent_and_reserved(store, everything.id, window) == (0, 490_000 * 9 // 10 + ROUNDING_NANO)
    refused = await refusal(house, house.key(house.chinese))
    assert refused.status == 402
    assert "installation" in refused.message
    assert "0.0007" not in refused.message
    await house.settle(lease, Usage(input=10, output=5))
    assert await spent_and_reserved(store, everything.id, window) == (0 + (2800 + 2100) * 9 // 10, 0)
    assert await spent_and_reserved(store, team.id, "0-") == (4900, 0)


async def test_a_hard_budget_that_cannot_be_counted_refuses_and_a_soft_one_lets_pass(house: House) -> None:
    await house.budget("1", scope="all", scope_id=None, currency="JPY", hard=False)
    await house.admit(house.key(house.american))
    await house.budget("1", scope="all", scope_id=None, currency="KRW", hard=True)
    error = await refusal(house, house.key(house.american))
    assert (error.status, error.code) == (403, "budget_not_countable")
    assert "USD to KRW" in error.message


async def test_a_budget_of_a_key_in_another_currency_than_its_teams_is_never_passed_over(house: House) -> None:
    await house.budget("1", scope="key", scope_id="key_search", currency="USD")
    assert (await refusal(house, house.key(house.chinese))).code == "budget_not_countable"


async def test_the_message_of_a_budget_says_what_is_left_what_was_asked_and_when_it_resets(house: House) -> None:
    await house.budget("0.0001", house.american, period="day", timezone="Europe/Berlin")
    error = await refusal(house, house.key(house.american))
    assert error.message.startswith("This team's budget of 0.0001 USD per day has 0.0001 USD left")
    assert "this request could cost 0.00049 USD" in error.message
    assert "It resets at 20" in error.message


async def test_headers_have_openais_form(house: House) -> None:
    key = house.key(house.american, Limits(10, 10_000, 2))
    lease = await house.admit(key)
    headers = dict(headers_of(lease.lines))
    assert headers[b"x-ratelimit-limit-requests"] == b"10"
    assert headers[b"x-ratelimit-remaining-requests"] == b"9"
    assert headers[b"x-ratelimit-limit-tokens"] == b"10000"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"8500"
    assert headers[b"x-ratelimit-reset-requests"].startswith((b"1m0", b"1m1s"))
    assert (await house.admit(house.key(house.american))).lines == b""


async def test_a_429_says_how_long_to_wait_and_what_ran_out(house: House) -> None:
    key = house.key(house.american, Limits(requests_per_minute=1))
    await house.admit(key)
    error = await refusal(house, key)
    assert (error.status, error.code, error.type) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert 59 <= int(error.headers["retry-after"]) <= 61
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.message.startswith("This key may make 1 requests in a minute, and made 1. Try again in ")
    parallel = house.key(house.american, Limits(max_parallel=1), key_id="key_b")
    lease = await house.admit(parallel)
    assert (await refusal(house, parallel)).headers["retry-after"] == "1"
    await house.admission.release(lease)
    await house.admit(parallel)


async def test_limits_of_a_key_for_one_model_stand_beside_its_own(house: House) -> None:
    key = house.key(
        house.american, Limits(requests_per_minute=10), model_limits={"large": Limits(requests_per_minute=1)}
    )
    await house.admit(key, model=model("large"))
    error = await refusal(house, key, model=model("large"))
    assert error.message.startswith("This key, for this model, may make 1 requests")
    await house.admit(key, model=model("small"))


async def test_a_budget_begins_with_what_the_database_says_was_spent(house: House) -> None:
    row = await house.budget("1", house.american)
    earlier = rated_record(Usage(input=100, output=50), id_=new_request_id(), team=house.american.id, currency="USD")
    async with house.database.begin() as connection:
        await record(connection, [earlier])
    await house.admit(house.key(house.american))
    spent = 100 * 280 + 50 * 420
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (spent, 490_000)


async def test_a_shipped_settlement_counts_once_and_a_correction_within_a_second(house: House) -> None:
    row = await house.budget("1", house.american)
    lease = await house.admit(house.key(house.american))
    await house.settle(lease, Usage(input=1000, output=500))
    shipped = rated_record(Usage(input=1000, output=500), id_=lease.request_id, team=house.american.id, currency="USD")
    other = rated_record(Usage(output=7), id_=new_request_id(), team=house.american.id, currency="USD")
    async with house.database.begin() as connection:
        await record(connection, [shipped, other])
    began = time.monotonic()
    while await spent_and_reserved(house.admission.store, row.id, "0-") != (490_000 + 7 * 420, 0):
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.02)
    assert (await house.admission.store.unshipped([], 10)).settled == {}


async def test_what_one_round_cannot_look_at_is_not_left_for_the_next_second(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a door that settles more in a second than a round looks at would hold more and more of it."""
    row = await house.budget("1", house.american)
    key = house.key(house.american)
    leases = [await house.admit(key) for _ in range(40)]
    for lease in leases:
        await house.settle(lease, Usage(output=1))
    given: dict[str, Any] = {"team": house.american.id, "key": key.key_id, "currency": "USD"}
    async with house.database.begin() as connection:
        await record(connection, [rated_record(Usage(output=1), id_=each.request_id, **given) for each in leases])
    monkeypatch.setattr(seeding, "SETTLEMENTS_PER_ROUND", 2)
    monkeypatch.setattr(seeding, "BACKLOG_S", 0.01)
    deadline = time.monotonic() + 20
    while (left := len((await house.admission.store.unshipped([], 100)).settled)) > 0:
        if left < len(leases):  # from the first round on, no further one is due by the clock
            monkeypatch.setattr(seeding, "ROUND_S", 3600.0)
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert await spent_and_reserved(house.admission.store, row.id, "0-") == (40 * 420, 0)


async def test_a_lease_is_renewed_as_long_as_somebody_holds_it(database: AsyncEngine) -> None:
    store = MemoryStore()
    house = await House.build(database, store, lease_ttl_s=2)
    try:
        key = house.key(house.american, Limits(max_parallel=2))
        held = await house.admit(key)
        await house.admit(key)
        house.leases.clear()  # the door forgot both; this test holds on to one
        gc.collect()
        began = time.monotonic()
        seen: set[int] = set()
        while time.monotonic() < began + 5:  # more than two lifetimes, each long enough for a busy machine
            seen.add((await store.view(key.key_id, [])).counters.parallel)
            await asyncio.sleep(0.02)
        assert seen == {2, 1}
        await house.admission.release(held)
        assert (await store.view(key.key_id, [])).counters.parallel == 0
    finally:
        await house.admission.stop()


async def test_key_state_has_limits_and_budgets_and_not_everybodys(house: House) -> None:
    key = house.key(house.chinese, Limits(10, None, 4))
    team = await house.budget("100.00", house.chinese, period="month", timezone="Asia/Shanghai")
    await house.budget("1000", scope="all", scope_id=None, currency="USD")
    lease = await house.admit(key)
    state = await key_state(house.admission, house.catalog.snapshot, key, lease.at_us)
    assert state.remaining == Remaining(9, None, 3)
    end_us = BudgetWindow(team.id, lease.claim.charges[0].window).bounds()[1]
    assert end_us is not None
    (left,) = state.budgets
    assert isinstance(left, BudgetLeft)
    assert (left.amount, left.spent, left.reserved, left.remaining) == ("100", "0", "0.00049", "99.99951")
    assert (left.currency, left.period, left.hard) == ("CNY", "month", True)
    assert left.resets_at is not None
    assert left.resets_at.endswith("16:00:00Z")
