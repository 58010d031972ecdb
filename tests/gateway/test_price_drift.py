"""The book beside the list prices that are known here: the real genai-prices package, and the book that ships."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing import seed
from billing.database import open_database
from billing.errors import InvalidPrice
from billing.price_drift import ListedPrice, price_drift, write_acknowledged
from billing.price_file import PriceFile, parse_yaml
from billing.publishing import publish_price
from billing.seed import shipped_book
from billing.times import parse_time
from gateway import price_drift as module
from gateway.access.pepper import load_pepper
from gateway.catalog import Catalog
from gateway.metrics import Metrics
from gateway.price_drift import PriceDrift
from gateway.price_feed import FeedError, asked, feed_prices
from gateway.settings import load_settings

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def test_the_shipped_book_beside_the_package_as_it_is_today() -> None:
    ours = [
        ListedPrice(each.price_list, each.model, each.token_class, each.amount, each.min_input_tokens)
        for each in shipped_book().drafts
    ]
    found = feed_prices([(each.provider, each.model) for each in ours], NOW)
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


async def test_the_package_is_asked_in_a_process_of_its_own() -> None:
    models = [("openai", "gpt-4.1"), ("nobody", "nothing")]
    assert {(each.model, each.token_class): each.amount for each in await asked(models)}["gpt-4.1", "input"] == "2"
    assert "genai_prices.data" not in sys.modules or feed_prices(models) == await asked(models)


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(sqlite_url)
    async with engine.begin() as connection:
        await seed.seed(connection)
    yield engine
    await engine.dispose()


@pytest.fixture
async def catalog(database: AsyncEngine, tmp_path: Path) -> AsyncIterator[Catalog]:
    made = Catalog(database, load_pepper(load_settings(None, {"METERGATE_HOME": str(tmp_path)})), poll_s=60)
    await made.start()
    yield made
    await made.stop()


async def post(database: AsyncEngine, catalog: Catalog, amount: str, since: str) -> None:
    async with database.begin() as connection:
        await publish_price(
            connection,
            price_list="openai",
            model="gpt-4.1",
            token_class="output",
            currency="USD",
            amount=amount,
            effective_from_us=parse_time(since, "at"),
        )
    await catalog.refresh()


def value(metrics: Metrics, source: str) -> float | None:
    return metrics.registry.get_sample_value("metergate_price_drift", {"source": source})


async def test_rule_06_a_price_that_differs_is_an_alarm_until_it_is_published_or_acknowledged(
    database: AsyncEngine, catalog: Catalog, tmp_path: Path
) -> None:
    known, metrics = tmp_path / "known.yaml", Metrics()
    known.write_text("")
    keeper = PriceDrift(catalog, known, metrics)
    rows = (await keeper.look()).data
    assert not any((each.model, each.token_class) == ("gpt-4.1", "output") for each in rows)
    await post(database, catalog, "9", "2026-02-01T00:00:00Z")
    report = await keeper.look()
    (found,) = [each for each in report.data if (each.model, each.token_class) == ("gpt-4.1", "output")]
    assert (found.source, found.ours, found.theirs, found.known) == ("genai-prices", "9", "8", False)
    assert [(each.name, each.state) for each in report.sources] == [
        ("shipped", "compared"),
        ("genai-prices", "compared"),
    ]
    assert value(metrics, "genai-prices") == len(report.new) >= 1
    assert value(metrics, "shipped") == 0, "a price that somebody published later is no drift from the shipped one"
    assert await keeper.look() is report, "asked again on the same day for the same book, it remembers"
    known.write_text(write_acknowledged(report.data, [], "negotiated"))
    assert ((await keeper.look()).new, value(metrics, "genai-prices")) == ([], 0)
    await post(database, catalog, "10", "2026-03-01T00:00:00Z")
    assert [each.ours for each in (await keeper.look()).new] == ["10"]


@pytest.mark.parametrize("text", [None, "- 3\n", "{"])
async def test_what_cannot_be_read_as_acknowledged_is_said_and_acknowledges_nothing(
    catalog: Catalog, tmp_path: Path, text: str | None
) -> None:
    known = tmp_path / "known.yaml"
    if text is not None:
        known.write_text(text)
    with pytest.raises(InvalidPrice, match="known"):
        await PriceDrift(catalog, known).look()


async def test_a_newer_release_s_book_is_an_alarm_where_it_is_younger_than_the_row(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
note: of a later release
models:
  - {provider: openai, model: gpt-4.1, currency: USD, effective_from: "2026-05-01T00:00:00Z", prices: {input: "1.5", output: "8"}}
  - {provider: openai, model: gpt-9, currency: USD, effective_from: "2026-05-01T00:00:00Z", prices: {input: "1"}}
  - {provider: deepseek, model: deepseek-chat, currency: CNY, effective_from: "2026-05-01T00:00:00Z", prices: {input: "2"}}
  - {provider: google, model: gemini-2.5-flash, currency: USD, effective_from: "2020-05-01T00:00:00Z", prices: {input: "7"}}
"""

    def later() -> PriceFile:
        return parse_yaml(text)

    monkeypatch.setattr(module, "shipped_book", later)
    monkeypatch.setattr(module, "installed", lambda: None)
    report = await PriceDrift(catalog, None).look()
    assert [(each.model, each.token_class, each.ours, each.theirs) for each in report.data] == [
        ("gpt-4.1", "input", "2", "1.5")
    ]
    assert [(each.name, each.state, each.prices, each.detail) for each in report.sources] == [
        ("shipped", "compared", 3, "of a later release"),
        ("genai-prices", "absent", 0, "pip install genai-prices"),
    ]


async def test_rule_06_a_source_that_fails_is_said_and_never_passes_for_agreement(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(models: list[tuple[str, str]]) -> list[ListedPrice]:
        raise FeedError("it is broken")

    async def twice(models: list[tuple[str, str]]) -> list[ListedPrice]:
        return [ListedPrice("openai", "gpt-4.1", "output", each) for each in ("1", "2")]

    for feed, said in ((broken, "it is broken"), (twice, "twice")):
        monkeypatch.setattr(module, "asked", feed)
        metrics = Metrics()
        report = await PriceDrift(catalog, None, metrics).look()
        assert (report.sources[1].state, said in report.sources[1].detail) == ("failed", True)
        shown = value(metrics, "genai-prices")
        assert shown is not None
        assert shown != shown, "not a number: neither agreement nor drift"
