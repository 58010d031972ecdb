"""The prices of the genai-prices package as the drift check takes them. It is a tool beside us, not a dependency."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from billing.price_drift import ListedPrice
from billing.usage import TokenClass
from gateway.cli.admin_client import Json
from gateway.cli.errors import CliError

_FIELDS: Final = {
    "input_mtok": (TokenClass.INPUT, 1),
    "cache_read_mtok": (TokenClass.CACHE_READ, 1),
    "cache_write_mtok": (TokenClass.CACHE_WRITE_5M, 1),
    "cache_write_1h_mtok": (TokenClass.CACHE_WRITE_1H, 1),
    "output_mtok": (TokenClass.OUTPUT, 1),
    "input_audio_mtok": (TokenClass.AUDIO_INPUT, 1),
    "output_audio_mtok": (TokenClass.AUDIO_OUTPUT, 1),
    "input_image_mtok": (TokenClass.IMAGE_INPUT, 1),
    "output_image_mtok": (TokenClass.IMAGE_OUTPUT, 1),
    "requests_kcount": (TokenClass.REQUEST, 1000),
    "web_searches_kcount": (TokenClass.WEB_SEARCH, 1000),
}
"""The package's field, our class, and how many of ours its price is for."""


def our_prices(rows: Iterable[Json], now: datetime | None = None) -> list[ListedPrice]:
    """The book's standard prices in USD that are in force now, out of all its rows."""
    moment = (now or datetime.now(UTC)).isoformat()
    newest: dict[tuple[str, str, str, int], Json] = {}
    for row in rows:
        if (row["service_tier"], row["processing"], row["currency"]) != ("default", "standard", "USD"):
            continue
        if row["unit"] not in ("mtok", "request") or row["effective_from"] > moment:
            continue
        key = (row["provider"], row["model"], row["token_class"], row["min_input_tokens"])
        if key not in newest or newest[key]["effective_from"] < row["effective_from"]:
            newest[key] = row
    return [ListedPrice(*key[:3], row["amount"], key[3]) for key, row in newest.items()]


def feed_prices(wanted: Iterable[ListedPrice], now: datetime | None = None) -> list[ListedPrice]:
    """What the package lists for the models that we price too. Raises `CliError` where it is not installed."""
    try:
        data = importlib.import_module("genai_prices.data")
    except ImportError as error:
        raise CliError("the drift check reads the genai-prices package: `pip install genai-prices`") from error
    moment = now or datetime.now(UTC)
    providers = {provider.id: provider for provider in data.providers}
    found: list[ListedPrice] = []
    for provider_id, model_id in sorted({(each.provider, each.model) for each in wanted}):
        provider = providers.get(provider_id)
        model = None if provider is None else provider.find_model(model_id)
        if model is not None:
            found.extend(_listed(provider_id, model_id, model.get_prices(moment)))
    return found


def _listed(provider: str, model: str, prices: Any) -> Iterator[ListedPrice]:
    for name, value in vars(prices).items():
        if name not in _FIELDS or value is None:
            continue
        token_class, count = _FIELDS[name]
        for threshold, price in _tiers(value):
            yield ListedPrice(provider, model, str(token_class), _plain(price / count), threshold)


def _tiers(value: Any) -> Iterator[tuple[int, Decimal]]:
    if isinstance(value, Decimal):
        yield 0, value
        return
    yield 0, value.base
    for tier in value.tiers:
        yield tier.start, tier.price


def _plain(price: Decimal) -> str:
    return f"{price:f}"
