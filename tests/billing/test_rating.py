"""Rating: the exact rational, rounded once; pinned; unpriced is no zero."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.books import Pins
from billing.errors import NoPrice, NoRate, NoTerms
from billing.exchange import RateKind
from billing.money import NANO, Money
from billing.rating import AttemptUsage, Payer, Rated, check_settleable, rate, worst_case
from billing.usage import TokenClass, Usage
from billing.views import saving_percent
from tests.billing.helpers import FOUNDING, NOON_US, books, fixed_terms, market_terms, price, rate_row, used

TEAM = Payer("team_a", "CNY")
DOLLARS = Payer("team_b", "USD")


def _rate(usage: Usage, world: object = FOUNDING, payer: Payer = TEAM, pins: Pins | None = None) -> Rated:
    attempt = used(usage)
    return rate(
        world,  # type: ignore[arg-type]
        pins or world.pins(),  # type: ignore[attr-defined]
        at_us=NOON_US,
        payer=payer,
        charged=attempt,
        attempts=[attempt],
    )


def _usage(counts: dict[str, int]) -> Usage:
    return msgspec.convert(counts, Usage)


def test_the_founding_case() -> None:
    """One million output tokens of DeepSeek V3.2 at USD 0.42, settled at CNY 1 for USD 1, against the official 7.3."""
    rated = _rate(Usage(output=1_000_000))
    assert rated.list == Money.parse("0.42", "USD")
    assert rated.policy == Money.parse("3.066", "CNY")
    assert rated.settled == Money.parse("0.42", "CNY")
    assert rated.reference == Money.parse("2.794218", "CNY")
    assert rated.cost == Money.parse("0.42", "USD")
    assert (rated.price_row_ids, rated.rate_ids, rated.terms_id, rated.unpriced) == ((2,), (1, 2), 1, None)
    assert rated.settled is not None
    assert rated.policy is not None
    assert saving_percent(rated.settled.nano, rated.policy.nano) == "86.3014"


@pytest.mark.parametrize(
    ("dollars", "policy", "settled"),
    [("8", "58.4", "8"), ("15", "109.5", "15"), ("2.50", "18.25", "2.5"), ("0.42", "3.066", "0.42")],
)
def test_the_founding_table_has_one_saving_for_every_model(dollars: str, policy: str, settled: str) -> None:
    world = books(
        price(1, "output", dollars),
        rate_row(1, "USD/CNY", RateKind.POLICY, "7.3"),
        rate_row(2, "USD/CNY", RateKind.REFERENCE, "6.6529", "2026-11-27T15:00:00Z"),
        fixed_terms(1, "1"),
    )
    rated = _rate(Usage(output=1_000_000), world)
    assert rated.policy is not None
    assert rated.settled is not None
    assert rated.reference is not None
    assert (rated.policy.amount, rated.settled.amount) == (policy, settled)
    assert saving_percent(rated.settled.nano, rated.policy.nano) == "86.3014"
    assert saving_percent(rated.settled.nano, rated.reference.nano) == "84.969"


def test_the_saving_of_ten_million_tokens_a_day_for_thirty_days() -> None:
    rated = _rate(Usage(output=10_000_000 * 30))
    assert rated.policy is not None
    assert rated.settled is not None
    assert str(rated.policy - rated.settled) == "793.8 CNY"


@given(
    counts=st.fixed_dictionaries({name: st.integers(0, 10_000_000) for name in ("input", "cache_read", "output")}),
    prices=st.tuples(*[st.integers(0, 10**9)] * 3),
    policy_pico=st.integers(10_000, 10**16),
    settled_pico=st.integers(10_000, 10**16),
)
def test_every_amount_is_the_exact_rational_rounded_half_even_once(
    counts: dict[str, int], prices: tuple[int, ...], policy_pico: int, settled_pico: int
) -> None:
    micro = dict(zip(counts, prices, strict=True))
    policy = rate_row(1, "USD/CNY", RateKind.POLICY, "1")
    world = books(
        *(
            price(at, name, f"{amount // 10**6}.{amount % 10**6:06d}")
            for at, (name, amount) in enumerate(micro.items(), 1)
        ),
        type(policy)(1, "USD", "CNY", RateKind.POLICY, policy_pico, "t", policy.effective_from_us, 0),
        fixed_terms(1, f"{settled_pico // 10**12}.{settled_pico % 10**12:012d}"),
    )
    rated = _rate(_usage(counts), world)
    for line in rated.lines:
        exact = Fraction(counts[line.token_class] * micro[line.token_class] * 1000, 10**6)
        assert line.list_nano == round(exact)
        assert line.settled_nano == round(exact * Fraction(settled_pico, 10**12))
        assert line.policy_nano == round(exact * Fraction(policy_pico, 10**12))
    for total, name in ((rated.list, "list_nano"), (rated.settled, "settled_nano"), (rated.policy, "policy_nano")):
        assert total is not None
        assert total.nano == sum(getattr(line, name) for line in rated.lines)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_rule_01_the_classes_add_up_to_the_total_input(uncached: int, read: int, short: int, long: int) -> None:
    usage = Usage(input=uncached, cache_read=read, cache_write_5m=short, cache_write_1h=long, output=5)
    assert usage.total_input == uncached + read + short + long
    assert sum(count for _, count in usage.lines()) == usage.total


@given(st.lists(st.integers(0, 2), min_size=len(TokenClass), max_size=len(TokenClass)))
def test_every_class_with_a_count_is_a_line(counts: list[int]) -> None:
    named = list(zip(TokenClass, counts, strict=True))
    usage = msgspec.convert({str(kind): count for kind, count in named}, Usage)
    assert usage.lines() == [(kind, count) for kind, count in named if count]


def test_rule_01_cached_tokens_are_priced_once_and_reasoning_not_at_all() -> None:
    rated = _rate(Usage(input=1_000_000, cache_read=1_000_000, output=1_000_000, reasoning=900_000))
    assert rated.list == Money.parse("0.728", "USD")
    assert [(str(line.token_class), line.list_nano) for line in rated.lines] == [
        ("input", 280_000_000),
        ("cache_read", 28_000_000),
        ("output", 420_000_000),
    ]


def test_rule_05_a_class_without_a_price_makes_the_request_unpriced_never_zero() -> None:
    rated = _rate(Usage(input=10, audio_input=5))
    assert (rated.list, rated.settled, rated.policy, rated.cost) == (None, None, None, None)
    assert rated.unpriced == "no price for audio_input of deepseek-chat on price list deepseek"
    assert [(line.quantity, line.list_nano, line.settled_nano, line.price_row_id) for line in rated.lines] == [
        (10, None, None, None),
        (5, None, None, None),
    ], "no part of it is charged as if it were the whole"


def test_a_price_per_request_that_stands_alone_is_the_price_of_the_whole_request() -> None:
    alone = books(price(1, "request", "0.5", unit="request"), fixed_terms(1, "2"))
    rated = _rate(Usage(input=90, cache_read=3, output=7, audio_input=2), alone)
    assert (rated.unpriced, rated.settled, rated.list) == (None, Money.parse("1", "CNY"), Money.parse("0.5", "USD"))
    assert rated.cost == Money.parse("0.5", "USD")
    assert {(str(line.token_class), line.quantity, line.settled_nano) for line in rated.lines} == {
        ("input", 90, 0), ("cache_read", 3, 0), ("output", 7, 0), ("audio_input", 2, 0), ("request", 1, NANO),
    }  # fmt: skip
    without_terms = _rate(Usage(input=90), alone, Payer("team_b", "CNY"))
    assert (without_terms.settled, {line.settled_nano for line in without_terms.lines}) == (None, {None})
    for kind, tier in (("input", "default"), ("web_search", "default"), ("output", "flex")):
        beside = books(*alone.prices.rows, price(2, kind, "1", tier=tier))
        assert _rate(Usage(input=90, output=7), beside, DOLLARS).unpriced is not None


def test_rule_05_a_price_of_zero_is_a_price() -> None:
    world = books(price(1, "input", "0"), price(2, "output", "0"), fixed_terms(1, "1"))
    rated = _rate(Usage(input=7, output=9), world)
    assert rated.unpriced is None
    assert rated.settled == Money("CNY", 0)
    assert rated.price_row_ids == (1, 2)


def test_without_terms_the_list_stands_and_the_settlement_is_not_guessed() -> None:
    rated = _rate(Usage(output=1_000_000), payer=Payer("team_b", "CNY"))
    assert rated.list == Money.parse("0.42", "USD")
    assert rated.settled is None
    assert rated.policy == Money.parse("3.066", "CNY")
    assert rated.unpriced == "no settlement terms from USD to CNY"


def test_in_one_currency_nothing_is_converted() -> None:
    rated = _rate(Usage(output=1_000_000), payer=DOLLARS)
    dollars = Money.parse("0.42", "USD")
    assert (rated.list, rated.settled, rated.policy, rated.reference) == (dollars,) * 4
    assert (rated.rate_ids, rated.terms_id) == ((), None)


def test_rule_07_a_pin_never_sees_later_prices_rates_or_terms() -> None:
    grown = books(
        *FOUNDING.prices.rows,
        *FOUNDING.rates.rows,
        *FOUNDING.terms.rows,
        price(9, "output", "100", version=2, since="2026-01-02T00:00:00Z"),
        rate_row(9, "USD/CNY", RateKind.POLICY, "9", "2026-01-02T00:00:00Z"),
        fixed_terms(9, "5"),
    )
    assert _rate(Usage(output=123_457), grown, pins=FOUNDING.pins()) == _rate(Usage(output=123_457))
    assert _rate(Usage(output=123_457), grown) != _rate(Usage(output=123_457))


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_saving_does_not_depend_on_the_model(cheap: int, dear: int) -> None:
    """The exact saving is 1 - 1/7.3 whatever the price; amounts carry nine decimals, so four of the percentage hold."""
    amounts = []
    for micro in (cheap, dear):
        world = books(
            price(1, "output", f"{micro // 10**6}.{micro % 10**6:06d}"),
            rate_row(1, "USD/CNY", RateKind.POLICY, "7.3"),
            fixed_terms(1, "1"),
        )
        rated = _rate(Usage(output=1_000_000_000), world)
        assert rated.settled is not None
        assert rated.policy is not None
        amounts.append(saving_percent(rated.settled.nano, rated.policy.nano))
    assert amounts == ["86.3014", "86.3014"]


def test_rule_06_the_tier_the_provider_served_is_billed() -> None:
    world = books(price(1, "output", "1"), price(2, "output", "2", tier="priority"))
    attempt = used(Usage(output=1_000_000), tier="priority")
    rated = rate(world, world.pins(), at_us=NOON_US, payer=DOLLARS, charged=attempt, attempts=[attempt])
    assert rated.list == Money.parse("2", "USD")
    attempt = used(Usage(output=1_000_000), tier="flex")
    rated = rate(world, world.pins(), at_us=NOON_US, payer=DOLLARS, charged=attempt, attempts=[attempt])
    assert rated.unpriced == "no price for output of deepseek-chat on price list deepseek (tier flex, standard)"


def test_rule_06_above_a_threshold_the_whole_request_takes_the_higher_rows() -> None:
    world = books(
        price(1, "input", "1"),
        price(2, "output", "4"),
        price(3, "input", "2", above=200_000),
        price(4, "output", "6", above=200_000),
    )
    below = _rate(Usage(input=150_000, cache_read=0, output=1_000), world, DOLLARS)
    above = _rate(Usage(input=200_001, output=1_000), world, DOLLARS)
    assert below.price_row_ids == (1, 2)
    assert above.price_row_ids == (3, 4)


def test_rule_04_every_attempts_cost_is_kept_and_the_caller_is_charged_once() -> None:
    failed, answered = used(Usage(input=1000, output=10), sequence=1), used(Usage(input=1000, output=500), sequence=2)
    rated = rate(FOUNDING, FOUNDING.pins(), at_us=NOON_US, payer=TEAM, charged=answered, attempts=[failed, answered])
    assert [attempt.cost for attempt in rated.attempts] == [Money("USD", 284_200), Money("USD", 490_000)]
    assert rated.cost == Money("USD", 774_200)
    assert rated.settled == Money("CNY", 490_000)


def test_nobody_answered_costs_the_team_nothing_and_us_what_was_used() -> None:
    failed = used(Usage(input=1000))
    rated = rate(FOUNDING, FOUNDING.pins(), at_us=NOON_US, payer=TEAM, charged=None, attempts=[failed])
    assert rated.list == Money("USD", 0)
    assert rated.settled == Money("CNY", 0)
    assert rated.cost == Money("USD", 280_000)
    assert (rated.lines, rated.unpriced) == ((), None)


def test_cost_follows_the_terms_with_the_provider() -> None:
    world = books(
        *FOUNDING.prices.rows, *FOUNDING.rates.rows, *FOUNDING.terms.rows, fixed_terms(5, "0.9", provider="reseller")
    )
    attempt = used(Usage(output=1_000_000), provider="reseller")
    rated = rate(world, world.pins(), at_us=NOON_US, payer=TEAM, charged=attempt, attempts=[attempt])
    assert rated.cost == Money.parse("0.378", "CNY")
    assert rated.settled == Money.parse("0.42", "CNY")


def test_costs_in_two_currencies_add_up_at_the_reference_rate_in_that_of_the_last_attempt() -> None:
    world = books(
        *FOUNDING.prices.rows, *FOUNDING.rates.rows, *FOUNDING.terms.rows, fixed_terms(5, "1", provider="reseller")
    )
    first, last = used(Usage(output=1_000_000)), used(Usage(output=1_000_000), sequence=2, provider="reseller")
    rated = rate(world, world.pins(), at_us=NOON_US, payer=TEAM, charged=last, attempts=[first, last])
    assert [attempt.cost for attempt in rated.attempts] == [Money.parse("0.42", "USD"), Money.parse("0.42", "CNY")]
    assert rated.cost == Money.parse("3.214218", "CNY")


def test_a_request_fee_counts_once_and_its_absence_is_no_gap() -> None:
    world = books(price(1, "input", "1"), price(2, "request", "0.005", unit="request"))
    assert _rate(Usage(input=1_000_000), world, DOLLARS).list == Money.parse("1.005", "USD")
    assert _rate(Usage(input=1_000_000, request=1), world, DOLLARS).list == Money.parse("1.005", "USD")
    assert _rate(Usage(output=1, request=1)).unpriced is None


def test_an_engine_by_the_hour_costs_its_share_of_time_and_no_tokens() -> None:
    world = books(price(1, "request", "3.60", unit="hour"))
    rated = _rate(Usage(input=5, output=7, compute_us=2_500_000), world, DOLLARS)
    assert rated.unpriced is None
    assert rated.list == Money.parse("0.0025", "USD")
    assert rated.cost == Money.parse("0.0025", "USD")
    assert {str(line.token_class): line.quantity for line in rated.lines} == {
        "input": 5,
        "output": 7,
        "request": 2_500_000,
    }


def test_an_amount_beyond_64_bits_is_refused_never_wrapped() -> None:
    world = books(price(1, "output", "1000000000"))
    rated = _rate(Usage(output=10**16), world, DOLLARS)
    assert rated.settled is None
    assert rated.unpriced == "overflow: the amount of 10000000000000000 output is beyond 64 bits"


def test_rule_05_a_sum_beyond_64_bits_is_flagged_and_never_free() -> None:
    """Each line fits, their sum does not: no part of it is charged as if it were the whole."""
    world = books(price(1, "input", "600"), price(2, "output", "600"))
    rated = _rate(Usage(input=10**13, output=10**13), world, DOLLARS)
    assert (rated.settled, rated.list, rated.cost) == (None, None, None)
    assert rated.unpriced == "overflow: the sum of the lines is beyond 64 bits" and rated.overflow
    assert {line.settled_nano for line in rated.lines} == {None}
    assert not _rate(Usage(input=10**13), world, DOLLARS).overflow


def test_a_comparison_beyond_64_bits_takes_no_charge_away() -> None:
    dear = rate_row(1, "USD/CNY", RateKind.POLICY, "8000000")
    world = books(price(1, "output", "1000"), fixed_terms(1, "1"), dear)
    rated = _rate(Usage(output=10**10), world)
    assert rated.settled == Money.parse("10000000", "CNY")
    assert rated.policy is None and not rated.overflow


def test_a_request_that_used_nothing_costs_nothing_in_the_price_lists_currency() -> None:
    rated = _rate(Usage())
    assert (rated.list, rated.settled, rated.cost) == (Money("USD", 0), Money("CNY", 0), Money("USD", 0))
    assert rated.lines == ()


def _check(payer: Payer = TEAM, model: str = "deepseek-chat", world: object = FOUNDING) -> None:
    check_settleable(
        world,  # type: ignore[arg-type]
        world.pins(),  # type: ignore[attr-defined]
        at_us=NOON_US,
        payer=payer,
        price_list="deepseek",
        model=model,
    )


def test_what_cannot_be_charged_is_refused_before_it_is_called() -> None:
    _check()
    _check(DOLLARS)
    with pytest.raises(NoPrice, match="no price for output of gpt on price list deepseek"):
        _check(model="gpt")
    with pytest.raises(NoTerms, match="no settlement terms from USD to EUR; record terms for team team_a"):
        _check(Payer("team_a", "EUR"))
    with pytest.raises(NoRate, match="no rate in force"):
        _check(world=books(price(1, "output", "1"), price(2, "input", "1"), market_terms(1, 100)))
    fee = price(3, "request", "1", unit="request")
    _check(DOLLARS, world=books(fee))
    for kind, missing in (("output", "input"), ("input", "output")):
        for some in ([price(1, kind, "1")], [price(1, kind, "1"), fee]):
            with pytest.raises(NoPrice, match=f"no price for {missing} of"):
                _check(DOLLARS, world=books(*some))


def _worst(world: object, input_tokens: int, output_tokens: int, payer: Payer = DOLLARS) -> Money:
    return worst_case(
        world,  # type: ignore[arg-type]
        world.pins(),  # type: ignore[attr-defined]
        at_us=NOON_US,
        payer=payer,
        price_list="deepseek",
        model="deepseek-chat",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def test_the_worst_case_takes_the_dearest_input_class() -> None:
    world = books(
        price(1, "input", "3"), price(2, "cache_write_1h", "6"), price(3, "cache_read", "0.3"), price(4, "output", "15")
    )
    assert _worst(world, 1000, 100) == Money("USD", 7_500_000)


def test_the_worst_case_takes_the_higher_tier_within_the_estimates_error() -> None:
    world = books(price(1, "input", "1"), price(2, "output", "1"), price(3, "input", "2", above=200_000))
    assert _worst(world, 100_000, 0) == Money("USD", 100_000_000)
    assert _worst(world, 180_000, 0) == Money("USD", 360_000_000)


@given(
    counts=st.fixed_dictionaries({name: st.integers(0, 300_000) for name in ("input", "cache_read", "output")}),
)
def test_no_request_costs_more_than_its_worst_case(counts: dict[str, int]) -> None:
    rated = _rate(_usage(counts))
    assert rated.settled is not None
    worst = _worst(FOUNDING, counts["input"] + counts["cache_read"], counts["output"], TEAM)
    assert rated.settled.nano <= worst.nano + len(rated.lines)
    assert worst.nano < 10 * NANO


def test_tokens_are_enumerated_in_the_contracts_order() -> None:
    assert [str(token_class) for token_class in TokenClass] == [
        "input",
        "cache_read",
        "cache_write_5m",
        "cache_write_1h",
        "output",
        "audio_input",
        "audio_output",
        "image_input",
        "image_output",
        "web_search",
        "request",
    ]


def test_an_attempt_on_another_price_list_is_priced_there() -> None:
    world = books(price(1, "output", "1"), price(2, "output", "7", price_list="claude", model="sonnet"))
    attempt = AttemptUsage(1, "claude", "sonnet", "any-provider", Usage(output=1_000_000))
    rated = rate(world, world.pins(), at_us=NOON_US, payer=DOLLARS, charged=attempt, attempts=[attempt])
    assert rated.list == Money.parse("7", "USD")
