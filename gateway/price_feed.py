"""The prices of the genai-prices package, as the drift check takes them. It is a tool beside us, not a dependency.

Reading it takes a quarter of a second and 30 MB, so `asked` runs this module as a process of its own: models in on standard
input, prices out on standard output.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec

from billing.price_drift import ListedPrice
from billing.usage import TokenClass

PACKAGE: Final = "genai-prices"
TIMEOUT_S: Final = 30.0
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

Models = list[tuple[str, str]]
"""Price list and model."""


class FeedError(Exception):
    """The package could not be asked, and why."""


def installed() -> str | None:
    """The package's version, which is also how old its prices are; None where it is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


async def asked(models: Models) -> list[ListedPrice]:
    """What the installed package lists for these models now. Raises `FeedError`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, said = await process.communicate(msgspec.json.encode(models))
    except TimeoutError as error:
        raise FeedError(f"{PACKAGE} gave no answer within {TIMEOUT_S:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = (said.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise FeedError(f"{PACKAGE} could not be read: {last}")
    try:
        return msgspec.json.decode(output, type=list[ListedPrice])
    except msgspec.DecodeError as error:
        raise FeedError(f"{PACKAGE} gave no list of prices: {error}") from error


def feed_prices(models: Iterable[tuple[str, str]], now: datetime | None = None) -> list[ListedPrice]:
    """What the package lists for the models that we price too. Raises `ImportError` where it is not installed."""
    data = importlib.import_module("genai_prices.data")
    moment = (now or datetime.now(UTC)).replace(hour=12, minute=0)  # some providers are cheaper at their night
    providers = {provider.id: provider for provider in data.providers}
    found: list[ListedPrice] = []
    for provider_id, model_id in sorted(set(models)):
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
            yield ListedPrice(provider, model, str(token_class), f"{price / count:f}", threshold)


def _tiers(value: Any) -> Iterator[tuple[int, Decimal]]:
    if isinstance(value, Decimal):
        yield 0, value
        return
    yield 0, value.base
    for tier in value.tiers:
        yield tier.start, tier.price


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Models)
    sys.stdout.buffer.write(msgspec.json.encode(feed_prices(wanted)))
