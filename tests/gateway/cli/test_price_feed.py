"""The real genai-prices package beside the shipped book, and the verb that compares them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from billing.price_drift import ListedPrice, price_drift
from billing.seed import shipped_book
from gateway.cli.errors import CliError
from gateway.cli.price_feed import feed_prices, our_prices

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def row(amount: str, since: str, **other: Any) -> dict[str, Any]:
    return {
        "provider": "deepseek",
        "model": "deepseek-chat",
        "token_class": "output",
        "currency": "USD",
        "amount": amount,
        "unit": "mtok",
        "service_tier": "default",
        "processing": "standard",
        "min_input_tokens": 0,
        "effective_from": since,
        **other,
    }


def test_the_price_in_force_is_compared_and_nothing_else() -> None:
    rows = [
        row("0.50", "2026-01-01T00:00:00Z"),
        row("0.42", "2026-06-01T00:00:00Z"),
        row("0.40", "2027-01-01T00:00:00Z"),
        row("0.21", "2026-06-01T00:00:00Z", processing="batch"),
        row("3", "2026-06-01T00:00:00Z", currency="CNY"),
    ]
    assert our_prices(rows, NOW) == [ListedPrice("deepseek", "deepseek-chat", "output", "0.42")]


def test_the_shipped_book_beside_the_package_as_it_is_today() -> None:
    ours = [
        ListedPrice(each.price_list, each.model, each.token_class, each.amount, each.min_input_tokens)
        for each in shipped_book().drafts
    ]
    found = feed_prices(ours, NOW)
    theirs = {(each.model, each.token_class, each.min_input_tokens): each.amount for each in found}
    assert theirs["gpt-4.1", "output", 0] == "8"
    assert theirs["claude-sonnet-4-5", "output", 0] == "15"
    assert theirs["claude-sonnet-4-5", "output", 200_000] == "22.5"
    assert theirs["gemini-2.5-flash", "output", 0] == "2.5"
    assert theirs["gpt-4.1", "web_search", 0] == "0.01"
    drift = {
        (each.model, each.token_class, each.min_input_tokens): (each.ours, each.theirs)
        for each in price_drift(ours, found)
    }
    assert ("gpt-4.1", "output", 0) not in drift
    assert drift["claude-sonnet-4-5", "output", 200_000] == (None, "22.5")
    assert not any(model == "smollm2-135m-instruct" for model, _, _ in drift)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data", None)
    with pytest.raises(CliError, match="pip install genai-prices"):
        feed_prices([])
