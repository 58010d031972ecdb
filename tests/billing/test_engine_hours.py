"""An engine costed by the hour: a request costs its share of engine time, whatever it is sold at."""

from __future__ import annotations

from fractions import Fraction
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import Books
from billing.break_even import break_even
from billing.exchange import RateKind
from billing.ledger import record, usage_row
from billing.money import INT64_MAX, NANO, Money
from billing.publishing import publish_price
from billing.rating import AttemptUsage, Payer, Rated, rate, rate_in_full
from billing.records import AttemptRecord, UsageRecord
from billing.rerating import rerate
from billing.times import HOUR_US, quarter_of, time_us_of
from billing.usage import Usage
from tests.billing.helpers import FOUNDING, NOON_US, at, books, fixed_terms, price, rate_row, request_id
from tests.billing.world import World, make_world, request

TEAM = Payer("team_a", "CNY")
HOUR = Money.parse("3.6", "USD")
"""A dollar is 10^9 microseconds of it: a microsecond is a nano dollar."""


def rated(usage: Usage, world: Books = FOUNDING, hour: Money = HOUR, provider: str = "local") -> Rated:
    attempt = AttemptUsage(1, "deepseek", "deepseek-chat", provider, usage, cost_per_hour=hour)
    return rate(world, world.pins(), at_us=NOON_US, payer=TEAM, charged=attempt, attempts=[attempt])


@given(
    compute_us=st.integers(1, 10**12),
    hour_nano=st.integers(0, 10**12),
    output=st.integers(0, 10**6),
)
def test_the_cost_is_the_exact_share_of_an_hour_rounded_once_and_the_sale_knows_nothing_of_it(
    compute_us: int, hour_nano: int, output: int
) -> None:
    attempt = AttemptUsage(
        1,
        "deepseek",
        "deepseek-chat",
        "local",
        Usage(output=output, compute_us=compute_us),
        cost_per_hour=Money("USD", hour_nano),
    )
    asked = {"at_us": NOON_US, "payer": TEAM, "charged": attempt, "attempts": [attempt]}
    found = rate(FOUNDING, FOUNDING.pins(), **asked)  # type: ignore[arg-type]
    assert found == rate_in_full(FOUNDING, FOUNDING.pins(), **asked), "with a plan or the long way"  # type: ignore[arg-type]
    assert found.cost is not None
    exact = Fraction(compute_us * hour_nano, HOUR_US)
    assert found.cost == Money("USD", round(exact))  # round() of a Fraction is half-even
    bought = rate(
        FOUNDING,
        FOUNDING.pins(),
        at_us=NOON_US,
        payer=TEAM,
        charged=(same := AttemptUsage(1, "deepseek", "deepseek-chat", "local", Usage(output=output))),
        attempts=[same],
    )
    assert (found.lines, found.list, found.settled, found.policy) == (
        bought.lines,
        bought.list,
        bought.settled,
        bought.policy,
    )


@given(parts=st.lists(st.integers(1, 10**9), min_size=1, max_size=50), hour_nano=st.integers(1, 10**11))
def test_the_shares_of_a_busy_engine_add_up_to_its_hours(parts: list[int], hour_nano: int) -> None:
    hour = Money("USD", hour_nano)
    costs = [rated(Usage(output=1, compute_us=part), hour=hour).cost for part in parts]
    whole = rated(Usage(output=1, compute_us=sum(parts)), hour=hour).cost
    assert whole is not None
    assert 2 * abs(sum(cost.nano for cost in costs if cost) - whole.nano) <= len(parts) + 1


def test_the_margin_is_what_is_settled_less_engine_time_at_the_reference_rate() -> None:
    found = rated(Usage(output=1_000_000, compute_us=10_000_000))
    assert (found.settled, found.cost) == (Money.parse("0.42", "CNY"), Money.parse("0.01", "USD"))
    assert found.margin == Money.parse("0.353471", "CNY")  # 0.42 - 0.01 x 6.6529
    assert found.attempts[0].price_row_ids == () and found.attempts[0].cost_per_hour == HOUR


def test_the_provider_s_terms_apply_to_the_price_of_an_hour() -> None:
    world = books(
        *FOUNDING.prices.rows, *FOUNDING.rates.rows, *FOUNDING.terms.rows, fixed_terms(5, "7", provider="local")
    )
    assert rated(Usage(output=1, compute_us=10**9), world).cost == Money.parse("7", "CNY")
    unknown = books(*FOUNDING.prices.rows, rate_row(1, "USD/CNY", RateKind.POLICY, "7.3"), fixed_terms(1, "1"))
    assert rated(Usage(output=1, compute_us=10**9), unknown).margin is None, "no reference rate: no guess"


def test_where_the_engine_told_no_time_the_tokens_are_the_estimate_and_nothing_is_never_a_gap() -> None:
    by_tokens = rated(Usage(output=1_000_000))
    assert by_tokens.cost == Money.parse("0.42", "USD")
    assert (by_tokens.attempts[0].price_row_ids, by_tokens.attempts[0].cost_per_hour) == ((2,), None)
    assert rated(Usage()).cost == Money("USD", 0)
    assert rated(Usage(output=1), hour=Money("USD", 0)).cost == Money("USD", 0), "an hour for nothing is no gap either"


def test_one_yuan_a_dollar_brings_no_loss_on_an_engine_that_costs_nothing() -> None:
    """The bundled engine as it ships: its price list says what it is sold at, not what it costs."""
    found = rated(Usage(output=1_000_000, compute_us=10**9), hour=Money("USD", 0))
    assert found.margin == found.settled == Money.parse("0.42", "CNY")


def test_rule_05_a_share_beyond_64_bits_is_no_cost_and_takes_no_charge_away() -> None:
    found = rated(Usage(output=1, compute_us=10**12), hour=Money("USD", INT64_MAX))
    assert (found.cost, found.margin, found.unpriced) == (None, None, None)
    assert found.settled is not None
    assert found.attempts[0].unpriced == "overflow: the cost is beyond 64 bits"


def engine_request(books: Books, world: World, id_: UUID, compute_us: int) -> UsageRecord:
    """A request that the engine answered, which also failed on an upstream before."""
    usage = Usage(output=1_000_000, compute_us=compute_us)
    made = request(books, world.team, "deepseek-chat", usage, 0, id_)
    attempt = AttemptUsage(1, "deepseek", "deepseek-chat", "local", usage, cost_per_hour=HOUR)
    payer = Payer(world.team.id, "CNY")
    found = rate(books, made.pins, at_us=time_us_of(id_), payer=payer, charged=attempt, attempts=[attempt])
    outcome: AttemptRecord = replace(
        made.attempts[0],
        provider="local",
        cost=found.attempts[0].cost,
        price_row_ids=(),
        cost_per_hour=found.attempts[0].cost_per_hour,
    )
    return replace(made, provider="local", rated=found, attempts=(outcome,))


@pytest.fixture
async def world(database: AsyncEngine) -> World:
    return await make_world(database)


async def test_what_an_hour_cost_is_frozen_in_the_row_and_a_correction_keeps_it(world: World) -> None:
    id_ = request_id(at("2026-11-20T12:00:00Z"))
    loaded = await world.books()
    async with world.engine.begin() as connection:
        await record(connection, [engine_request(loaded, world, id_, 10**9)])
    async with world.engine.begin() as connection:
        row = await usage_row(connection, id_)
        assert row is not None
        (attempt,) = row.attempts
        assert attempt.cost_per_hour is not None and attempt.cost is not None and row.cost is not None
        assert (attempt.cost_per_hour.amount, attempt.cost.amount, row.cost.amount) == ("3.6", "1", "1")
        assert (attempt.price_rows, attempt.tokens) == ([], {"output": 1_000_000, "compute_us": 10**9})
        await publish_price(
            connection,
            price_list="deepseek",
            model="deepseek-chat",
            token_class="output",
            currency="USD",
            amount="0.84",
            effective_from_us=at("2026-11-19T00:00:00Z"),
        )
    ids = (request_id(NOON_US), request_id(NOON_US))
    async with world.engine.begin() as connection:
        await rerate(connection, id_, ids, reason="wrong price", actor="ann", price_list_of=lambda provider: "deepseek")
        again = await usage_row(connection, ids[1])
    assert again is not None and again.cost is not None and again.list is not None
    assert (again.list.amount, again.cost.amount, again.attempts[0].cost_per_hour) == (
        "0.84",
        "1",
        attempt.cost_per_hour,
    )
    assert await world.sum("SELECT sum(cost_nano) FROM rollup_traffic") == NANO, "row, reversal, new row"


async def test_the_break_even_report_says_what_the_rows_cost_beside_what_the_engine_did(world: World) -> None:
    start_us = quarter_of(at("2026-11-20T12:00:00Z"))
    loaded = await world.books()
    async with world.engine.begin() as connection:
        made = [engine_request(loaded, world, request_id(start_us + n), HOUR_US // 8) for n in range(3)]
        await record(connection, made)
    async with world.engine.connect() as connection:
        found = await break_even(
            connection,
            loaded,
            provider="local",
            cost_per_hour=HOUR,
            start_us=start_us,
            end_us=start_us + HOUR_US,
            at_us=NOON_US,
        )
    assert found.busy_cost is not None
    assert [each.amount for each in found.recorded_cost] == [found.busy_cost.amount] == ["1.35"]
    assert found.elapsed_cost.amount == "3.6"


def test_an_hour_in_the_book_and_one_in_the_settings_are_told_apart() -> None:
    """The book's price of an hour is what the engine is sold at; the settings' what it costs."""
    world = books(price(1, "request", "7.20", unit="hour"), fixed_terms(1, "1"))
    found = rated(Usage(output=5, compute_us=10**9), world)
    assert (found.list, found.cost) == (Money.parse("2", "USD"), Money.parse("1", "USD"))
