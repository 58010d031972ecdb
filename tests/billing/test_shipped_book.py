"""The book that ships: the figures that the product states, each with its source and date."""

from __future__ import annotations

import re

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import load_books
from billing.exchange import RateKind
from billing.seed import seed, shipped_book
from billing.times import now_us
from billing.views import price_view

DEEPSEEK = {"input": "0.28", "output": "0.42", "cache_read": "0.028"}
STATED = {
    ("openai", "gpt-4.1"): {"input": "2", "output": "8", "cache_read": "0.5"},
    ("anthropic", "claude-sonnet-4-5"): {
        "input": "3",
        "output": "15",
        "cache_read": "0.3",
        "cache_write_5m": "3.75",
        "cache_write_1h": "6",
    },
    ("google", "gemini-2.5-flash"): {"input": "0.3", "output": "2.5", "cache_read": "0.03"},
    ("deepseek", "deepseek-chat"): DEEPSEEK,
    ("deepseek", "deepseek-reasoner"): DEEPSEEK,
}


async def test_every_shipped_figure_is_the_one_that_is_stated(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        assert await seed(connection)
        assert not await seed(connection), "an update of the product never changes a price"
        books = await load_books(connection)
    held: dict[tuple[str, str], dict[str, str]] = {}
    for row in books.prices.current(at_us=now_us(), version=books.prices.version):
        assert (row.currency, row.unit, row.service_tier, row.processing) == ("USD", "mtok", "default", "standard")
        held.setdefault((row.price_list, row.model), {})[str(row.token_class)] = price_view(row).amount
    own = held.pop(("metergate", "smollm2-135m-instruct"))
    assert set(own) == {"input", "output", "cache_read"}, "so that the first call is priced"
    assert held == STATED
    rate = books.rates.find(RateKind.POLICY, "USD", "CNY", now_us(), books.rates.version)
    assert rate is not None and rate.numerator * 10 == 73 * rate.denominator


def test_every_shipped_price_names_its_source_and_date() -> None:
    for draft in shipped_book().drafts:
        assert draft.source is not None
        if draft.price_list != "metergate":
            assert re.fullmatch(r"https://[a-z.-]+/\S*, [\w .-]+, \d{4}-\d\d-\d\d", draft.source), draft.source
