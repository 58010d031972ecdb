"""Our book beside a public feed: differences are reported, known ones stay known until a figure moves, nothing is written."""

from __future__ import annotations

import pytest

from billing.errors import BillingError
from billing.price_drift import Acknowledged, ListedPrice, price_drift, read_acknowledged, write_acknowledged

OURS = [
    ListedPrice("deepseek", "deepseek-chat", "output", "0.42"),
    ListedPrice("deepseek", "deepseek-chat", "input", "0.28"),
    ListedPrice("metergate", "own", "output", "0.02"),
]
THEIRS = [
    ListedPrice("deepseek", "deepseek-chat", "output", "1.1"),
    ListedPrice("deepseek", "deepseek-chat", "input", "0.280"),
    ListedPrice("deepseek", "deepseek-chat", "input", "0.5", 200_000),
    ListedPrice("openai", "gpt-5", "output", "10"),
]


def test_differences_of_the_models_that_both_price() -> None:
    assert [
        (each.token_class, each.min_input_tokens, each.ours, each.theirs) for each in price_drift(OURS, THEIRS)
    ] == [
        ("input", 200_000, None, "0.5"),
        ("output", 0, "0.42", "1.1"),
    ]


def test_an_acknowledged_difference_is_known_until_a_figure_moves() -> None:
    found = price_drift(OURS, THEIRS)
    text = write_acknowledged(found, [], "V3.2 is cheaper than the feed says")
    known = read_acknowledged(text)
    assert [each.known for each in price_drift(OURS, THEIRS, known)] == [True, True]
    moved = [*THEIRS[1:], ListedPrice("deepseek", "deepseek-chat", "output", "1.0")]
    assert [each.known for each in price_drift(OURS, moved, known)] == [True, False]
    again = read_acknowledged(write_acknowledged(price_drift(OURS, moved, known), known, "seen again"))
    assert [each.note for each in again] == ["V3.2 is cheaper than the feed says", "seen again"]


@pytest.mark.parametrize(
    "feed",
    [
        [],
        [ListedPrice("deepseek", "deepseek-chat", "outputs", "1")],
        [ListedPrice("deepseek", "deepseek-chat", "output", "NaN")],
        [ListedPrice("deepseek", "deepseek-chat", "output", "-1")],
        [ListedPrice("deepseek", "deepseek-chat", "output", "1" + "0" * 30)],
        [ListedPrice("deepseek", "deepseek-chat", "output", each) for each in ("1", "2")],
    ],
)
def test_rule_06_a_malformed_or_empty_feed_is_an_alarm_and_never_agreement(feed: list[ListedPrice]) -> None:
    with pytest.raises(BillingError) as refusal:
        price_drift(OURS, feed)
    assert refusal.value.field == "feed"


@pytest.mark.parametrize("text", ["{", "- 3", "- {provider: x}", "a: 1", "- 2026-13-45", "[" * 5000, "&a [*a]"])
def test_a_file_of_acknowledgements_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BillingError, match="known: no list of acknowledged differences"):
        read_acknowledged(text)


def test_figures_are_compared_as_numbers() -> None:
    known = [Acknowledged("deepseek", "deepseek-chat", "output", "0.420", "1.10")]
    assert [each.known for each in price_drift(OURS, THEIRS, known)] == [False, True]
