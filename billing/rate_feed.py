"""Market rates out of a feed's own text, checked before one of them is taken: all of a file, or nothing and the reason why.

Two formats: the European Central Bank's XML (`eurofxref-daily.xml`, or the 90 days in the same form), and a plain JSON object

    {"base": "EUR", "date": "2026-10-30", "rates": {"USD": 1.0873, "CNY": "7.2341"}}

with `date` (that day, from its UTC midnight on) or `published_at` (RFC 3339). Figures are read as the decimal text that they are.
A rate must be positive, dated, not from the future nor older than the last days, and within `max_step_percent` of the one before
it. What stands in the books is never overwritten: a file that says otherwise is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final
from xml.etree import ElementTree

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.currencies import MINOR_DIGITS
from billing.database import bump_catalog_version
from billing.ecb import EcbRate
from billing.errors import InvalidAmount, InvalidRate, InvalidTime
from billing.exchange import REFERENCE_MAX_AGE_US, RateKind
from billing.money import PICO, format_scaled, parse_scaled
from billing.recording import MAX_RATE_PICO, MIN_RATE_PICO
from billing.times import DAY_US, HOUR_US, check_time, format_time, now_us, parse_time, us_of

MOST_RATES: Final = 100_000
AHEAD_US: Final = HOUR_US
"""Clocks differ, and a bank may publish a little before its hour."""
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_NUMBER: Final = re.compile(r"\d{1,20}(\.\d{1,30})?([eE][+-]?\d{1,2})?")


@dataclass(frozen=True, slots=True)
class FeedRate:
    """One `base` is `rate_pico` 1e-12 `quote`, from `effective_from_us` on."""

    base: str
    quote: str
    rate_pico: int
    effective_from_us: int

    def __str__(self) -> str:
        return (
            f"{self.base}/{self.quote} {format_scaled(self.rate_pico, PICO)} of {format_time(self.effective_from_us)}"
        )


@dataclass(frozen=True, slots=True)
class FeedResult:
    """How many rates were new, and how many stood in the books already; the moment of the file's newest."""

    added: int
    known: int
    newest_us: int


class _Json(msgspec.Struct):
    base: str
    rates: dict[str, msgspec.Raw]
    date: str | None = None
    published_at: str | None = None
    amount: msgspec.Raw = msgspec.Raw(b"1")


_json = msgspec.json.Decoder(_Json)


def parse_feed(form: str, text: str) -> list[FeedRate]:
    """The rates of a file in the form `ecb` or `json`; codes that are no currency of ISO 4217 are left out.

    Raises `InvalidRate` that says what the file lacks.
    """
    found = list(_of_ecb(text) if form == "ecb" else _of_json(text))
    if not found:
        raise InvalidRate("the file holds no rate", field="file")
    if len(found) > MOST_RATES:
        raise InvalidRate(f"the file holds more than {MOST_RATES} rates", field="file")
    if len({(rate.base, rate.quote, rate.effective_from_us) for rate in found}) != len(found):
        raise InvalidRate("the file says a rate twice", field="file")
    return found


def _of_ecb(text: str) -> Iterator[FeedRate]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InvalidRate("the file declares a document type; the bank's does not", field="file")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise InvalidRate(f"the file is no XML: {error}", field="file") from error
    for day in root.iter():
        if not day.tag.endswith("Cube") or "time" not in day.attrib:
            continue
        for each in day:
            currency = each.get("currency", "")
            if currency not in MINOR_DIGITS or currency == "EUR":
                continue
            pico = _pico(each.get("rate", ""), f"EUR/{currency}")
            moment = EcbRate(_day(day.attrib["time"]), currency, pico)
            yield FeedRate("EUR", currency, pico, moment.effective_from_us)


def _of_json(text: str) -> Iterator[FeedRate]:
    try:
        said = _json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRate(f"the file is no object of base, date and rates: {str(error)[:200]}", field="file") from error
    if said.base not in MINOR_DIGITS:
        raise InvalidRate(f"base: {said.base[:20]!r} is no ISO 4217 currency code", field="file")
    if _pico(_text(said.amount), "amount") != PICO:
        raise InvalidRate("amount: the rates must be for one unit", field="file")
    at_us = _moment(said)
    for quote, raw in said.rates.items():
        if _CURRENCY.fullmatch(quote) and quote in MINOR_DIGITS and quote != said.base:
            yield FeedRate(said.base, quote, _pico(_text(raw), f"{said.base}/{quote}"), at_us)


def _moment(said: _Json) -> int:
    if said.published_at is not None:
        try:
            return parse_time(said.published_at, "published_at")
        except InvalidTime as error:
            raise InvalidRate(str(error), field="file") from error
    if said.date is None:
        raise InvalidRate("the file is not dated: it has neither date nor published_at", field="file")
    day = _day(said.date)
    return us_of(datetime(day.year, day.month, day.day, tzinfo=UTC))


def _day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
        check_time(us_of(datetime(day.year, day.month, day.day, tzinfo=UTC)), "date")
    except (ValueError, InvalidTime) as error:
        raise InvalidRate(f"date: {text[:40]!r} is no day of this century", field="file") from error
    return day


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode().strip('"')


def _pico(figure: str, what: str) -> int:
    if not _NUMBER.fullmatch(figure):
        raise InvalidRate(f"{what}: {figure[:40]!r} is no positive decimal number", field="file")
    try:
        pico = parse_scaled(figure, PICO, what)
    except InvalidAmount as error:
        raise InvalidRate(str(error), field="file") from error
    if what != "amount" and not MIN_RATE_PICO <= pico <= MAX_RATE_PICO:
        raise InvalidRate(f"{what}: {figure} cannot be a rate", field="file")
    return pico


async def take_rates(
    connection: AsyncConnection,
    rates: Sequence[FeedRate],
    *,
    source: str,
    max_step_percent: int,
    currencies: Iterable[str] = (),
    at_us: int | None = None,
) -> FeedResult:
    """Record what is new of a feed's file as reference rates, all of it or nothing.

    `currencies`: those that the file must have, and that are taken of it (none: all). Raises `InvalidRate` for a file that is
    partial, stale, from the future, further than `max_step_percent` off what stood before, or at odds with the books.
    """
    at_us = now_us() if at_us is None else at_us
    rates = _wanted(rates, frozenset(currencies))
    newest_us = max(rate.effective_from_us for rate in rates)
    if newest_us > at_us + AHEAD_US:
        raise InvalidRate(f"the file is of {format_time(newest_us)}, which has not come yet", field="file")
    if newest_us < at_us - REFERENCE_MAX_AGE_US:
        days = REFERENCE_MAX_AGE_US // DAY_US
        raise InvalidRate(
            f"the file is stale: its newest rate is of {format_time(newest_us)}, over {days} days ago", field="file"
        )
    fresh, known = await _sorted_out(connection, rates, source)
    if not fresh:
        return FeedResult(0, known, newest_us)  # and nobody has to read the catalog again
    await bump_catalog_version(connection)
    fresh, known = await _sorted_out(connection, rates, source)
    before: dict[tuple[str, str], Any] = {}
    for rate in fresh:
        pair = (rate.base, rate.quote)
        _refuse_step(rate, before.get(pair) or await _before(connection, rate), max_step_percent)
        before[pair] = rate
    recorded_at_us = now_us()
    if fresh:
        values = [
            {
                "base": rate.base,
                "quote": rate.quote,
                "kind": str(RateKind.REFERENCE),
                "rate_pico": rate.rate_pico,
                "source": source,
                "effective_from_us": rate.effective_from_us,
                "recorded_at_us": recorded_at_us,
            }
            for rate in fresh
        ]
        await connection.execute(insert(tables.rate_rows), values)
    return FeedResult(len(fresh), known, newest_us)


def _wanted(rates: Sequence[FeedRate], currencies: frozenset[str]) -> Sequence[FeedRate]:
    if not currencies:
        return rates
    missing = currencies - {code for rate in rates for code in (rate.base, rate.quote)}
    if missing:
        raise InvalidRate(f"the file is partial: it has no rate of {', '.join(sorted(missing))}", field="file")
    return [rate for rate in rates if rate.quote in currencies]


async def newest_of(connection: AsyncConnection, source: str) -> int | None:
    """The moment of the newest market rate in the books that came from this source."""
    columns = tables.rate_rows.c
    query = select(func.max(columns.effective_from_us)).where(
        columns.source == source, columns.kind == RateKind.REFERENCE
    )
    newest_us: int | None = await connection.scalar(query)
    return newest_us


async def _sorted_out(
    connection: AsyncConnection, rates: Sequence[FeedRate], source: str
) -> tuple[list[FeedRate], int]:
    """What is newer than everything of this source, oldest first, and how many of the others stand in the books.

    Raises `InvalidRate` where one of these stands with another figure.
    """
    columns = tables.rate_rows.c
    query = select(columns.base, columns.quote, columns.effective_from_us, columns.rate_pico).where(
        columns.source == source,
        columns.kind == RateKind.REFERENCE,
        columns.effective_from_us >= min(rate.effective_from_us for rate in rates),
    )
    held = {(row[0], row[1], row[2]): int(row[3]) for row in await connection.execute(query.order_by(columns.id))}
    last_us = await newest_of(connection, source)
    fresh, known = [], 0
    for rate in sorted(rates, key=lambda each: (each.effective_from_us, each.base, each.quote)):
        standing = held.get((rate.base, rate.quote, rate.effective_from_us))
        if standing is None:
            if last_us is None or rate.effective_from_us > last_us:
                fresh.append(rate)
        elif standing == rate.rate_pico:
            known += 1
        else:
            raise InvalidRate(
                f"{rate} differs from what the books hold ({format_scaled(standing, PICO)}); nothing is overwritten",
                field="file",
            )
    return fresh, known


async def _before(connection: AsyncConnection, rate: FeedRate) -> Any:
    """The row that this one closes, whoever recorded it. Raises `InvalidRate` where the pair stands the other way round."""
    columns = tables.rate_rows.c
    market = select(tables.rate_rows).where(columns.kind == RateKind.REFERENCE)
    inverse = market.where(columns.base == rate.quote, columns.quote == rate.base).limit(1)
    if (await connection.execute(inverse)).first() is not None:
        raise InvalidRate(
            f"{rate}: the books hold {rate.quote}/{rate.base}; its inverse is derived, never stored", field="file"
        )
    earlier = market.where(
        columns.base == rate.base,
        columns.quote == rate.quote,
        columns.effective_from_us <= rate.effective_from_us,
    )
    latest = earlier.order_by(columns.effective_from_us.desc(), columns.id.desc()).limit(1)
    return (await connection.execute(latest)).one_or_none()


def _refuse_step(rate: FeedRate, last: Any, max_step_percent: int) -> None:
    if last is None:
        return
    if abs(rate.rate_pico - last.rate_pico) * 100 > last.rate_pico * max_step_percent:
        raise InvalidRate(
            f"{rate} is more than {max_step_percent} % off the last one, {format_scaled(last.rate_pico, PICO)} of "
            f"{format_time(last.effective_from_us)}; if it is true, record it by hand",
            field="file",
        )
