"""From usage to amounts: which price row each class takes, which rates lead to the payer's currency, one rounding each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from billing.books import Books, Pins
from billing.exchange import IDENTITY, Quote, RateKind
from billing.money import INT64_MAX, MICRO, Money, divide_half_even
from billing.prices import UNIT_SIZE, PriceRow
from billing.rated import OVERFLOW, AttemptUsage, Payer, RatedAttempt, RatedLine
from billing.terms import settlement_quote
from billing.usage import TokenClass

NANO_PER_MICRO: Final = 1000


class RatesUsed(msgspec.Struct, frozen=True, gc=False):
    """The three rates from one list currency to the payer's."""

    settled: Quote | None
    policy: Quote | None
    reference: Quote | None
    terms_id: int | None
    why_not: str | None


SAME_CURRENCY: Final = RatesUsed(IDENTITY, IDENTITY, IDENTITY, None, None)
Priced: TypeAlias = list[tuple[TokenClass, int, PriceRow | None]]
"""Class, quantity and price row of each line; no row: not priced."""


def amount_nano(quantity: int, row: PriceRow, quote: Quote = IDENTITY) -> int:
    """quantity x price x rate in nano, exact until its one rounding."""
    return divide_half_even(
        quantity * row.amount_micro * NANO_PER_MICRO * quote.numerator, UNIT_SIZE[row.unit] * quote.denominator
    )


def quantities(books: Books, pins: Pins, at_us: int, attempt: AttemptUsage) -> Priced:
    """The classes of one attempt with their quantities and price rows. A request fee applies once where the book has one,
    whether the adapter counted the request or not; where it has none, the count is no gap in the book."""
    usage = attempt.usage
    total_input, version = usage.total_input, pins.book
    price_list, model, tier, processing = attempt.price_list, attempt.model, attempt.service_tier, attempt.processing
    row_of = books.prices.row_of
    found: Priced = []
    for each, count in usage.lines():
        if each is not TokenClass.REQUEST:
            row = row_of((price_list, model, each, tier, processing), at_us, version, total_input)
            found.append((each, count, row))
    if found or usage.request or usage.compute_us:
        fee = row_of((price_list, model, TokenClass.REQUEST, tier, processing), at_us, version, total_input)
        if fee is not None:
            found.append((TokenClass.REQUEST, usage.compute_us if fee.unit == "hour" else max(usage.request, 1), fee))
    return found


def whole_price(books: Books, pins: Pins, at_us: int, found: Priced) -> PriceRow | None:
    """The row that prices the request as a whole: engine time, or a price per request that stands alone. What else was used is
    then counted, and costs nothing by itself."""
    kind, _, fee = found[-1] if found else (None, 0, None)
    if fee is None or kind is not TokenClass.REQUEST:
        return None
    return fee if books.prices.is_whole(fee, at_us=at_us, version=pins.book) else None


def rate_lines(
    books: Books,
    pins: Pins,
    at_us: int,
    payer: Payer,
    charged: AttemptUsage,
    found: Priced,
    multiplier_micro: int = MICRO,
) -> tuple[tuple[RatedLine, ...], list[RatesUsed], str | None]:
    """The lines of a request at `multiplier_micro` millionths of the prices found, the rates used, and what is missing."""
    lines: list[RatedLine] = []
    by_currency: dict[str, RatesUsed] = {}
    unpriced: str | None = None
    overflow: str | None = None
    for token_class, quantity, row in found:
        included = row is None
        if row is None:
            row = whole_price(books, pins, at_us, found)
        if row is None:
            unpriced = unpriced or no_price(charged, token_class)
            lines.append(RatedLine(token_class, quantity, None, None, None, None, None, None))
            continue
        rates = by_currency.get(row.currency)
        if rates is None:
            rates = by_currency[row.currency] = rates_to(books, pins, at_us, payer, row.currency)
            unpriced = unpriced or rates.why_not
        if included:
            line = _line(token_class, 0, row, rates, multiplier_micro)
            lines.append(replace(line, quantity=quantity, price_row_id=None))
            continue
        line = _line(token_class, quantity, row, rates, multiplier_micro)
        if line.price_row_id is None:
            overflow = overflow or f"{OVERFLOW}: the amount of {quantity} {token_class} is beyond 64 bits"
        lines.append(line)
    return tuple(lines), list(by_currency.values()), overflow or unpriced


def whole_or_nothing(lines: Sequence[RatedLine]) -> tuple[RatedLine, ...]:
    """A request is priced whole or not at all: the lines, less what one without a settled amount would still be charged, so that
    sums over lines and over rows agree. The list amounts stay where nothing but a rate is missing; a line that loses its amounts
    leaves the sums of its price too."""
    if all(line.settled_nano is not None for line in lines):
        return tuple(lines)
    listed = all(line.list_nano is not None for line in lines)
    return tuple([line if listed and line.settled_nano is None else line.without_amounts() for line in lines])


def _line(token_class: TokenClass, quantity: int, row: PriceRow, rates: RatesUsed, multiplier_micro: int) -> RatedLine:
    scaled = quantity * row.amount_micro * NANO_PER_MICRO
    unit = UNIT_SIZE[row.unit]
    if multiplier_micro != MICRO:
        scaled, unit = scaled * multiplier_micro, unit * MICRO
    listed = divide_half_even(scaled, unit)
    if rates is SAME_CURRENCY:
        settled: int | None = listed
        policy: int | None = listed
        reference: int | None = listed
    else:
        settled = _converted(scaled, unit, rates.settled)
        policy = _converted(scaled, unit, rates.policy)
        reference = _converted(scaled, unit, rates.reference)
    if max(listed, settled or 0) > INT64_MAX:
        return RatedLine(token_class, quantity, None, None, None, None, None, None)
    policy, reference = within(policy), within(reference)
    return RatedLine(token_class, quantity, row.id, row.currency, listed, settled, policy, reference)


def within(nano: int | None) -> int | None:
    """An amount to compare with, or None where 64 bits cannot hold it."""
    return None if nano is None or nano > INT64_MAX else nano


def _converted(scaled: int, unit: int, quote: Quote | None) -> int | None:
    return None if quote is None else divide_half_even(scaled * quote.numerator, unit * quote.denominator)


def rates_to(books: Books, pins: Pins, at_us: int, payer: Payer, currency: str) -> RatesUsed:
    if currency == payer.currency:
        return SAME_CURRENCY
    settled, terms = settlement_quote(
        books.terms,
        books.rates,
        team_id=payer.team_id,
        base=currency,
        quote=payer.currency,
        at_us=at_us,
        terms_version=pins.terms,
        rates_version=pins.rates,
    )
    why_not = None
    if settled is None:
        what = "no settlement terms" if terms is None else f"terms {terms.id}, but no rate in force,"
        why_not = f"{what} from {currency} to {payer.currency}"
    find = books.rates.find
    return RatesUsed(
        settled,
        find(RateKind.POLICY, currency, payer.currency, at_us, pins.rates),
        find(RateKind.REFERENCE, currency, payer.currency, at_us, pins.rates),
        terms.id if terms is not None else None,
        why_not,
    )


def margin_of(
    books: Books, pins: Pins, at_us: int, settled: Money | None, cost: Money | None
) -> tuple[Money | None, tuple[int, ...]]:
    """Settled less cost, in the currency of `settled`, and the reference rates that led there."""
    if settled is None or cost is None:
        return None, ()
    if cost.currency == settled.currency or cost.nano == 0:
        return Money(settled.currency, settled.nano - cost.nano), ()
    quote = books.rates.find(RateKind.REFERENCE, cost.currency, settled.currency, at_us, pins.rates)
    if quote is None:
        return None, ()
    cost_nano = divide_half_even(cost.nano * quote.numerator, quote.denominator)
    if cost_nano > INT64_MAX:
        return None, ()
    return Money(settled.currency, settled.nano - cost_nano), quote.rate_ids


def rate_ids_of(used: Sequence[RatesUsed], also: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Every rate row behind the amounts, each once, in the order of their use."""
    ids: dict[int, None] = {}
    for rates in used:
        for quote in (rates.settled, rates.policy, rates.reference):
            if quote is not None:
                for rate_id in quote.rate_ids:
                    ids[rate_id] = None
    for rate_id in also:
        ids[rate_id] = None
    return tuple(ids)


def no_price(attempt: AttemptUsage, token_class: TokenClass) -> str:
    kind = ""
    if attempt.service_tier != "default" or attempt.processing != "standard":
        kind = f" (tier {attempt.service_tier}, {attempt.processing})"
    return f"no price for {token_class} of {attempt.model} on price list {attempt.price_list}{kind}"


def rate_hours(books: Books, pins: Pins, at_us: int, attempt: AttemptUsage) -> RatedAttempt:
    """engine time x price of an hour x rate of the provider's terms, rounded half-even once."""
    hour = attempt.cost_per_hour
    assert hour is not None
    quote, paid_in = paid_at(books, pins, at_us, attempt.provider, hour.currency)
    if quote is None:
        return RatedAttempt(attempt.sequence, None, (), no_rate(hour.currency, paid_in), hour)
    nano = divide_half_even(
        attempt.usage.compute_us * hour.nano * quote.numerator, UNIT_SIZE["hour"] * quote.denominator
    )
    if nano > INT64_MAX:
        return RatedAttempt(attempt.sequence, None, (), f"{OVERFLOW}: the cost is beyond 64 bits", hour)
    return RatedAttempt(attempt.sequence, Money(paid_in, nano), (), None, hour)


def paid_at(books: Books, pins: Pins, at_us: int, provider: str, currency: str) -> tuple[Quote | None, str]:
    """At which rate, and in which currency, we pay this provider what stands in `currency`. No rate: none is in force."""
    terms = books.terms.find_provider(provider, currency, at_us, pins.terms)
    if terms is None:
        return IDENTITY, currency
    return terms.settlement(books.rates, at_us, pins.rates), terms.quote


def no_rate(currency: str, paid_in: str) -> str:
    return f"no rate in force for provider terms from {currency} to {paid_in}"
