"""From records to a rated row: who pays for which attempt, and what each attempt cost."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from billing.books import Books, Pins
from billing.exchange import RateBook
from billing.money import Money
from billing.prices import PriceBook, PriceRow
from billing.terms import TermsBook
from billing.usage import TokenClass, Usage
from gateway.metering.bill import rate_request, usage_record
from tests.gateway.metering.records import closed, opened, outcome

PINS = Pins(1, 0, 0)


def book(provider: str, input_micro: int, output_micro: int, first_id: int) -> list[PriceRow]:
    return [
        PriceRow(
            first_id + at, 1, provider, "deepseek-chat", kind, "USD", micro, "mtok", "default", "standard", 0, 0, None
        )
        for at, (kind, micro) in enumerate(((TokenClass.INPUT, input_micro), (TokenClass.OUTPUT, output_micro)))
    ]


BOOKS = Books(
    PriceBook([*book("deepseek", 280_000, 420_000, 1), *book("dear", 2_000_000, 8_000_000, 3)]),
    RateBook([]),
    TermsBook([]),
)


def usd(nano: int) -> Money:
    return Money("USD", nano)


def test_the_answering_attempt_is_charged_and_every_attempt_costs() -> None:
    """Rule 4: a fallback charges the caller once; every attempt's provider cost is kept."""
    first = opened(provider="dear", pins=PINS)
    second = opened(UUID(bytes=first.request_id), sequence=1, pins=PINS)
    done = closed(
        first,
        outcome(0, "failed", Usage(input=90), error="cut"),
        outcome(1, usage=Usage(input=90, output=10)),
        answered=1,
    )
    row = usage_record(BOOKS, [first, second], done)
    assert (row.provider, row.status, row.estimated) == ("deepseek", "completed", False)
    assert row.rated.settled == usd(90 * 280 + 10 * 420) == usd(29_400)
    assert [(each.sequence, each.status, each.cost) for each in row.attempts] == [
        (0, "failed", usd(90 * 2000)),
        (1, "completed", usd(29_400)),
    ]
    assert row.rated.cost == usd(180_000 + 29_400)
    assert row.usage == Usage(input=90, output=10)


def test_a_request_that_nobody_answered_is_charged_nothing() -> None:
    attempt = opened(pins=PINS)
    done = closed(attempt, outcome(0, "failed", None, error="refused"), status="failed", answered=None, error="refused")
    row = usage_record(BOOKS, [attempt], done)
    assert row.rated.settled == usd(0)
    assert (row.status, row.usage, row.error) == ("failed", Usage(), "refused")


@pytest.mark.parametrize(
    ("lost_charge", "settled", "usage"),
    [
        ("none", 0, Usage()),
        ("input", 100 * 280, Usage(input=100)),
        ("reservation", 100 * 280 + 500 * 420, Usage(input=100, output=500)),
    ],
)
def test_what_a_team_pays_for_a_lost_request_is_its_setting(lost_charge: str, settled: int, usage: Usage) -> None:
    row = usage_record(BOOKS, [opened(pins=PINS, lost_charge=lost_charge)], None)
    assert (row.status, row.estimated) == ("lost", True)
    assert row.rated.settled == usd(settled)
    assert row.usage == usage
    # The cost estimate is the reservation, whatever the team pays.
    assert row.rated.cost == usd(100 * 280 + 500 * 420)
    assert [(each.status, each.cost) for each in row.attempts] == [("lost", usd(238_000))]


def test_an_attempt_that_the_outcome_forgot_is_lost_and_still_costs() -> None:
    first = opened(provider="dear", pins=PINS)
    second = opened(UUID(bytes=first.request_id), sequence=1, pins=PINS)
    row = usage_record(BOOKS, [first, second], closed(first, outcome(1), answered=1))
    assert [(each.status, each.cost) for each in row.attempts] == [
        ("lost", usd(100 * 2000 + 500 * 8000)),
        ("completed", usd(29_400)),
    ]


def test_the_door_and_the_recorder_get_the_same_figures() -> None:
    attempt = opened(pins=PINS)
    assert rate_request(BOOKS, [attempt], closed(attempt)) == usage_record(BOOKS, [attempt], closed(attempt)).rated


def test_rule_07_a_price_posted_after_the_pin_changes_nothing() -> None:
    later = PriceRow(
        9, 2, "deepseek", "deepseek-chat", TokenClass.OUTPUT, "USD", 9, "mtok", "default", "standard", 0, 1, None
    )
    books = Books(PriceBook([*BOOKS.prices.rows, later]), BOOKS.rates, BOOKS.terms)
    attempt = opened(pins=PINS)
    assert rate_request(books, [attempt], closed(attempt)).settled == usd(29_400)


def test_the_tier_that_was_served_is_priced() -> None:
    """Rule 6: the outcome's tier counts, not the one asked for."""
    flex = PriceRow(
        9, 1, "deepseek", "deepseek-chat", TokenClass.OUTPUT, "USD", 210_000, "mtok", "flex", "standard", 0, 0, None
    )
    flex_in = PriceRow(
        10, 1, "deepseek", "deepseek-chat", TokenClass.INPUT, "USD", 140_000, "mtok", "flex", "standard", 0, 0, None
    )
    books = Books(PriceBook([*BOOKS.prices.rows, flex, flex_in]), BOOKS.rates, BOOKS.terms)
    attempt = opened(pins=PINS)
    served = replace(outcome(), service_tier="flex")
    row = usage_record(books, [attempt], closed(attempt, served))
    assert row.rated.settled == usd(90 * 140 + 10 * 210)
    assert row.attempts[0].service_tier == "flex"
