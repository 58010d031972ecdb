"""Own engine or bought tokens? What an engine that is paid by the hour costs per million tokens, beside every price in the book.

    busy     cost per hour x hours of engine time that requests used: what the traffic would cost on a full engine
    elapsed  cost per hour x hours of the range: what the engine did cost, idle or not
    upstream the same tokens, class by class, at the price (and provider terms) in force now, thresholds at their lowest

The break-even load is the tokens an hour, of the same mix, at which an hour of the engine costs what the upstream would take.
Nothing is read from requests but their sums, nothing is written.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.books import Books
from billing.errors import InvalidQuery, NoPrice
from billing.exchange import IDENTITY, Quote, RateKind
from billing.money import MICRO, NANO, Money, divide_half_even, format_scaled
from billing.prices import UNIT_SIZE
from billing.records import MoneyView
from billing.rollup_reads import rollup_sums
from billing.tables import TOKEN_COLUMNS, usage
from billing.times import DAY_US, HOUR_US, QUARTER_US, first_id_at
from billing.usage import INPUT_CLASSES, OUTPUT_CLASSES, TokenClass

MAX_RANGE_US: Final = 92 * DAY_US
_TOKEN_CLASSES: Final = (*INPUT_CLASSES, *OUTPUT_CLASSES)
_INSTEAD: Final = {
    TokenClass.CACHE_READ: TokenClass.INPUT,
    TokenClass.CACHE_WRITE_5M: TokenClass.INPUT,
    TokenClass.CACHE_WRITE_1H: TokenClass.INPUT,
}
"""An upstream that has no price for a cache class takes such tokens as plain input."""


class UpstreamComparison(msgspec.Struct, frozen=True):
    """One price list and model. `cost` is for the range's tokens; `cheaper` says who is, at the load there was.

    `break_even_percent` is the break-even load in percent of what the engine can do; above 100 the engine never gets there.
    """

    provider: str
    model: str
    cost: MoneyView
    cost_per_mtok: MoneyView
    break_even_tokens_per_hour: int | None
    break_even_percent: str | None
    cheaper: str


class BreakEven(msgspec.Struct, frozen=True):
    """`capacity_tokens_per_hour` is tokens per hour of engine time; null, as the busy cost, where requests carry none.
    `recorded_cost` is what the requests' rows say they cost, each at the price that was in force for it."""

    provider: str
    cost_per_hour: MoneyView
    hours: str
    compute_hours: str
    utilisation_percent: str
    requests: int
    tokens: dict[str, int]
    tokens_per_hour: int
    capacity_tokens_per_hour: int | None
    elapsed_cost: MoneyView
    elapsed_cost_per_mtok: MoneyView
    busy_cost: MoneyView | None
    busy_cost_per_mtok: MoneyView | None
    recorded_cost: tuple[MoneyView, ...]
    upstreams: tuple[UpstreamComparison, ...]


async def break_even(
    connection: AsyncConnection,
    books: Books,
    *,
    provider: str,
    cost_per_hour: Money,
    start_us: int,
    end_us: int,
    at_us: int,
    own_list: str | None = None,
) -> BreakEven:
    """The report over whole quarter-hours. `own_list` is what the engine is sold at (None: under its own name), and no upstream.

    Raises `InvalidQuery` for a range beyond 92 days, a cost that is not positive, or a
    range without tokens of this provider."""
    if not 0 < end_us - start_us <= MAX_RANGE_US or start_us % QUARTER_US or end_us % QUARTER_US:
        raise InvalidQuery("end: a break-even report covers up to 92 days of whole quarter-hours", field="end")
    if cost_per_hour.nano <= 0:
        raise InvalidQuery(
            "cost_per_hour: must be above zero; say what an hour of it costs, with its currency", field="cost_per_hour"
        )
    requests, tokens = await _traffic(connection, provider, start_us, end_us)
    total = sum(tokens.values())
    if total <= 0:
        raise InvalidQuery(f"provider: {provider} served no tokens in this range", field="provider")
    compute_us = await _compute_us(connection, provider, start_us, end_us)
    hours = Fraction(end_us - start_us, HOUR_US)
    compute_hours = Fraction(compute_us, HOUR_US)
    elapsed, busy = cost_per_hour.nano * hours, cost_per_hour.nano * compute_hours
    capacity = Fraction(total * HOUR_US, compute_us) if compute_us else None
    compared = [
        _compare(name, model, cost, total, cost_per_hour, elapsed, capacity)
        for name, model, cost in _upstreams(books, tokens, cost_per_hour.currency, at_us, own_list or provider)
    ]
    currency = cost_per_hour.currency
    return BreakEven(
        provider=provider,
        cost_per_hour=MoneyView(cost_per_hour.amount, currency),
        hours=_decimal(hours, 2),
        compute_hours=_decimal(compute_hours, 4),
        utilisation_percent=_decimal(Fraction(100 * compute_us, end_us - start_us), 2),
        requests=requests,
        tokens={name: count for name, count in tokens.items() if count},
        tokens_per_hour=total * HOUR_US // (end_us - start_us),
        capacity_tokens_per_hour=None if capacity is None else int(capacity),
        elapsed_cost=_money(elapsed, currency),
        elapsed_cost_per_mtok=_money(elapsed * Fraction(MICRO, total), currency),
        busy_cost=_money(busy, currency) if compute_us else None,
        busy_cost_per_mtok=_money(busy * Fraction(MICRO, total), currency) if compute_us else None,
        recorded_cost=await _recorded(connection, provider, start_us, end_us),
        upstreams=tuple(sorted(compared, key=lambda each: (Fraction(each.cost.amount), each.provider, each.model))),
    )


async def _traffic(
    connection: AsyncConnection, provider: str, start_us: int, end_us: int
) -> tuple[int, dict[str, int]]:
    classes = [str(each) for each in _TOKEN_CLASSES]
    assert set(classes) <= set(TOKEN_COLUMNS)
    found = await rollup_sums(connection, [(start_us, end_us)], ["requests", *classes], where={"provider": provider})
    requests, *counts = [sum(row.sums[at] for row in found) for at in range(1 + len(classes))]
    return requests, dict(zip(classes, counts, strict=True))


async def _recorded(connection: AsyncConnection, provider: str, start_us: int, end_us: int) -> tuple[MoneyView, ...]:
    sums: dict[str, int] = {}
    for row in await rollup_sums(connection, [(start_us, end_us)], ["cost_nano"], where={"provider": provider}):
        if row.cost_currency:
            sums[row.cost_currency] = sums.get(row.cost_currency, 0) + row.sums[0]
    return tuple(MoneyView(Money(currency, nano).amount, currency) for currency, nano in sorted(sums.items()))


async def _compute_us(connection: AsyncConnection, provider: str, start_us: int, end_us: int) -> int:
    columns = usage.c
    query = select(func.sum(columns.compute_us)).where(
        columns.id >= first_id_at(start_us), columns.id < first_id_at(end_us), columns.provider == provider
    )
    return int(await connection.scalar(query) or 0)


def _upstreams(
    books: Books, tokens: dict[str, int], currency: str, at_us: int, engine: str
) -> list[tuple[str, str, Fraction]]:
    """Every price list and model that can price this mix by tokens, with its cost in nano of `currency`."""
    version = books.prices.version
    names = {(row.price_list, row.model) for row in books.prices.current(at_us=at_us, version=version)}
    found = []
    for price_list, model in sorted(names):
        if price_list == engine:
            continue
        cost = _cost(books, price_list, model, tokens, currency, at_us)
        if cost is not None:
            found.append((price_list, model, cost))
    return found


def _cost(
    books: Books, price_list: str, model: str, tokens: dict[str, int], currency: str, at_us: int
) -> Fraction | None:
    total = Fraction(0)
    for token_class in _TOKEN_CLASSES:
        quantity = tokens[token_class]
        if not quantity:
            continue
        found: Any = None
        for wanted in (token_class, _INSTEAD.get(token_class)):
            if found is None and wanted is not None:
                found = books.prices.find(price_list, model, wanted, at_us=at_us, version=books.prices.version)
        if found is None or found.unit != "mtok":
            return None
        quote = _paid_in(books, price_list, found.currency, currency, at_us)
        if quote is None:
            return None
        total += Fraction(quantity * found.amount_micro * NANO, MICRO * UNIT_SIZE["mtok"]) * quote
    return total


def _paid_in(books: Books, provider: str, listed: str, wanted: str, at_us: int) -> Fraction | None:
    """From the list currency over the provider's terms, where there are any, to the wanted one at the market's rate."""
    terms = books.terms.find_provider(provider, listed, at_us, books.terms.version)
    settled: Quote | None = IDENTITY
    paid = listed
    if terms is not None:
        settled, paid = terms.settlement(books.rates, at_us, books.rates.version), terms.quote
    market = books.rates.find(RateKind.REFERENCE, paid, wanted, at_us, books.rates.version)
    if settled is None or market is None:
        return None
    return Fraction(settled.numerator, settled.denominator) * Fraction(market.numerator, market.denominator)


def _compare(
    provider: str,
    model: str,
    cost: Fraction,
    tokens: int,
    cost_per_hour: Money,
    elapsed: Fraction,
    capacity: Fraction | None,
) -> UpstreamComparison:
    load = None if cost == 0 else Fraction(cost_per_hour.nano * tokens * cost.denominator, cost.numerator)
    percent = (
        None
        if load is None or capacity is None
        else _decimal(100 * load * Fraction(capacity.denominator, capacity.numerator), 2)
    )
    currency = cost_per_hour.currency
    return UpstreamComparison(
        provider=provider,
        model=model,
        cost=_money(cost, currency),
        cost_per_mtok=_money(cost * Fraction(MICRO, tokens), currency),
        break_even_tokens_per_hour=None if load is None else -(-load.numerator // load.denominator),
        break_even_percent=percent,
        cheaper="engine" if elapsed < cost else "upstream" if cost < elapsed else "equal",
    )


def _money(nano: Fraction, currency: str) -> MoneyView:
    return MoneyView(Money(currency, divide_half_even(nano.numerator, nano.denominator)).amount, currency)


def _decimal(value: Fraction, decimals: int) -> str:
    scale = 10**decimals
    return format_scaled(divide_half_even(value.numerator * scale, value.denominator), scale)


def hourly_price(books: Books, price_list: str, at_us: int) -> Money:
    """What an hour of this engine costs by its price list: its one row per hour. Raises `NoPrice` where there is none."""
    rows = [
        row
        for row in books.prices.current(at_us=at_us, version=books.prices.version)
        if row.price_list == price_list and row.unit == "hour"
    ]
    if len({(row.currency, row.amount_micro) for row in rows}) != 1:
        raise NoPrice(
            f"cost_per_hour: price list {price_list} has {len(rows)} prices per hour; say what an hour costs, or publish one "
            "(token class request, unit hour)",
            field="cost_per_hour",
        )
    return Money(rows[0].currency, rows[0].amount_micro * 1000)
