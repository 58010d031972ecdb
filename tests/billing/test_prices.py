"""Which price row applies: by key, by moment, by version, by threshold."""

from __future__ import annotations

from billing.prices import PriceBook
from billing.usage import TokenClass
from tests.billing.helpers import at, price

OUTPUT = TokenClass.OUTPUT
INPUT = TokenClass.INPUT


def _find(book: PriceBook, when: str, *, version: int | None = None, total_input: int = 0, **key: str) -> int | None:
    row = book.find(
        key.pop("price_list", "deepseek"),
        key.pop("model", "deepseek-chat"),
        OUTPUT,
        at_us=at(when),
        version=book.version if version is None else version,
        total_input=total_input,
        **key,
    )
    return None if row is None else row.id


def test_the_next_row_of_a_key_closes_the_one_before() -> None:
    book = PriceBook([price(1, "output", "0.42"), price(2, "output", "0.50", since="2026-06-01T00:00:00Z")])
    assert _find(book, "2025-12-31T23:59:59Z") is None
    assert _find(book, "2026-01-01T00:00:00Z") == 1
    assert _find(book, "2026-05-31T23:59:59.999999Z") == 1
    assert _find(book, "2026-06-01T00:00:00Z") == 2


def test_rule_07_a_pinned_version_never_sees_a_later_row_even_a_backdated_one() -> None:
    book = PriceBook(
        [
            price(1, "output", "0.42"),
            price(2, "output", "9.99", version=2, since="2026-02-01T00:00:00Z"),
        ]
    )
    assert _find(book, "2026-03-01T00:00:00Z", version=1) == 1
    assert _find(book, "2026-03-01T00:00:00Z", version=2) == 2


def test_rule_06_a_threshold_is_a_cliff_strictly_above_it() -> None:
    book = PriceBook([price(1, "output", "2.50"), price(2, "output", "5", above=200_000)])
    assert _find(book, "2026-02-01T00:00:00Z", total_input=200_000) == 1
    assert _find(book, "2026-02-01T00:00:00Z", total_input=200_001) == 2


def test_a_threshold_row_that_has_not_started_leaves_the_base_row_in_force() -> None:
    book = PriceBook([price(1, "output", "2.50"), price(2, "output", "5", above=100, since="2026-06-01T00:00:00Z")])
    assert _find(book, "2026-02-01T00:00:00Z", total_input=1_000) == 1
    assert _find(book, "2026-07-01T00:00:00Z", total_input=1_000) == 2


def test_rule_06_a_tier_or_batch_without_its_own_row_is_not_priced_by_another() -> None:
    book = PriceBook([price(1, "output", "0.42"), price(2, "output", "0.84", tier="priority")])
    when = "2026-02-01T00:00:00Z"
    assert _find(book, when, service_tier="priority") == 2
    assert _find(book, when, service_tier="flex") is None
    assert _find(book, when, processing="batch") is None
    assert _find(book, when, model="deepseek-reasoner") is None
    assert _find(book, when, price_list="other") is None


def test_a_model_is_covered_when_input_and_output_or_the_request_is_priced() -> None:
    when = at("2026-02-01T00:00:00Z")
    only_output = PriceBook([price(1, "output", "1")])
    both = PriceBook([price(1, "output", "1"), price(2, "input", "1")])
    fee = PriceBook([price(1, "request", "1", unit="request")])
    some = PriceBook([price(1, "request", "1", unit="request"), price(2, "output", "1")])
    covered = [
        book.covers("deepseek", "deepseek-chat", at_us=when, version=1) for book in (only_output, both, fee, some)
    ]
    assert covered == [False, True, True, False]


def test_explain_names_the_row_that_applies_and_why_the_others_do_not() -> None:
    book = PriceBook(
        [
            price(1, "output", "1"),
            price(2, "output", "2", above=1000),
            price(3, "output", "3", since="2027-01-01T00:00:00Z"),
            price(4, "output", "4", version=2, since="2026-01-02T00:00:00Z"),
        ]
    )
    reasons = {
        row.id: why
        for row, why in book.explain(
            "deepseek", "deepseek-chat", OUTPUT, at_us=at("2026-02-01T00:00:00Z"), version=1, total_input=10
        )
    }
    assert reasons == {
        1: "applies",
        2: "for more than 1000 input tokens; this request has 10",
        3: "starts later",
        4: "published in version 2, after the pinned version 1",
    }


def test_the_difference_of_two_versions_is_what_the_newer_one_added() -> None:
    book = PriceBook([price(1, "output", "1"), price(2, "input", "2", version=2), price(3, "input", "3", version=3)])
    assert [row.id for row in book.diff(1, 3)] == [2, 3]
    assert [row.id for row in book.diff(2, 2)] == []
    assert [row.id for row in book.current(at_us=at("2026-02-01T00:00:00Z"), version=2)] == [1, 2]
