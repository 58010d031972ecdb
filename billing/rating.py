"""Rating: what one request costs, from its usage and the books as they were pinned when it was opened.

An amount is quantity x price x rate as an exact rational, rounded half-even to nano once (`money.divide_half_even`); totals
are sums of such amounts. What cannot be priced has no amount and a reason, never a zero. Pure functions over values: nothing
here reads a clock or a database, so whoever rates a request again with the same pins gets the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from billing.books import Books, Pins
from billing.errors import NoPrice, NoRate, NoTerms
from billing.exchange import IDENTITY, Quote, RateKind
from billing.money import INT64_MAX, Money, divide_half_even
from billing.prices import UNIT_SIZE, PriceRow
from billing.terms import settlement_quote
from billing.usage import INPUT_CLASSES, OUTPUT_CLASSES, TokenClass, Usage

NANO_PER_MICRO: Final = 1000
ESTIMATE_ERROR_PERCENT: Final = 25
"""How far above the estimate the real input may lie: a threshold within that reach counts as crossed in a worst case."""


@dataclass(frozen=True, slots=True)
class Payer:
    """Who is charged, and in which currency."""

    team_id: str
    currency: str


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """What one attempt used, and on which price list and model it is priced."""

    sequence: int
    price_list: str
    model: str
    provider: str
    usage: Usage
    service_tier: str = "default"
    processing: str = "standard"


@dataclass(frozen=True, slots=True)
class RatedLine:
    """One class of one request. The list amount is in `currency`, the other three in the payer's."""

    token_class: TokenClass
    quantity: int
    price_row_id: int | None
    currency: str | None
    list_nano: int | None
    settled_nano: int | None
    policy_nano: int | None
    reference_nano: int | None


@dataclass(frozen=True, slots=True)
class RatedAttempt:
    """What one attempt costs us at the provider, under the provider's terms where there are any."""

    sequence: int
    cost: Money | None
    price_row_ids: tuple[int, ...]
    unpriced: str | None


@dataclass(frozen=True, slots=True)
class Rated:
    """What the team is charged (`list`, then `settled`; `policy` and `reference` to compare with) and what it costs us.

    `unpriced` says why an amount that ought to be there is None. `policy` and `reference` are also None, without a reason,
    where no such rate is in force. Settled, policy and reference are in the payer's currency.
    """

    lines: tuple[RatedLine, ...]
    list: Money | None
    settled: Money | None
    policy: Money | None
    reference: Money | None
    cost: Money | None
    price_row_ids: tuple[int, ...]
    rate_ids: tuple[int, ...]
    terms_id: int | None
    attempts: tuple[RatedAttempt, ...]
    unpriced: str | None


@dataclass(frozen=True, slots=True)
class _Rates:
    """The three rates from one list currency to the payer's."""

    settled: Quote | None
    policy: Quote | None
    reference: Quote | None
    terms_id: int | None
    why_not: str | None


def amount_nano(quantity: int, row: PriceRow, quote: Quote = IDENTITY) -> int:
    """quantity x price x rate in nano, exact until its one rounding."""
    return divide_half_even(
        quantity * row.amount_micro * NANO_PER_MICRO * quote.numerator, UNIT_SIZE[row.unit] * quote.denominator
    )


def rate(
    books: Books,
    pins: Pins,
    *,
    at_us: int,
    payer: Payer,
    charged: AttemptUsage | None,
    attempts: Sequence[AttemptUsage],
) -> Rated:
    """The request's amounts: charged is what the answering attempt used (None: nobody answered, the charge is zero), the
    cost is the sum over all attempts. Never raises for a missing price, rate or terms: the reason is in the answer."""
    rated_attempts = tuple(_rate_attempt(books, pins, at_us, attempt) for attempt in attempts)
    cost = _total_cost(books, pins, at_us, rated_attempts)
    if charged is None:
        zero = Money(payer.currency, 0)
        list_currency = _list_currency(books, pins, at_us, attempts[0]) if attempts else None
        return Rated(
            (), Money(list_currency or payer.currency, 0), zero, zero, zero, cost, (), (), None, rated_attempts, None
        )
    lines, rates_used, unpriced = _rate_lines(books, pins, at_us, payer, charged)
    price_ids = tuple(line.price_row_id for line in lines if line.price_row_id is not None)
    terms_id = next((used.terms_id for used in rates_used if used.terms_id is not None), None)
    return Rated(
        lines,
        _list_total(books, pins, at_us, payer, charged, lines),
        _total(payer.currency, [line.settled_nano for line in lines]),
        _total(payer.currency, [line.policy_nano for line in lines]),
        _total(payer.currency, [line.reference_nano for line in lines]),
        cost,
        price_ids,
        _rate_ids(rates_used),
        terms_id,
        rated_attempts,
        unpriced,
    )


def quantities(
    books: Books, pins: Pins, at_us: int, attempt: AttemptUsage
) -> list[tuple[TokenClass, int, PriceRow | None]]:
    """The classes of one attempt with their quantities and price rows. A request fee applies once where the book has one,
    whether the adapter counted the request or not; where it has none, the count is no gap in the book."""
    usage = attempt.usage
    total_input = usage.total_input
    found: list[tuple[TokenClass, int, PriceRow | None]] = []
    find = books.prices.find
    for token_class, quantity in usage.lines():
        if token_class is TokenClass.REQUEST:
            continue
        row = find(
            attempt.price_list,
            attempt.model,
            token_class,
            at_us=at_us,
            version=pins.book,
            total_input=total_input,
            service_tier=attempt.service_tier,
            processing=attempt.processing,
        )
        found.append((token_class, quantity, row))
    if found or usage.request or usage.compute_us:
        fee = find(
            attempt.price_list,
            attempt.model,
            TokenClass.REQUEST,
            at_us=at_us,
            version=pins.book,
            total_input=total_input,
            service_tier=attempt.service_tier,
            processing=attempt.processing,
        )
        if fee is not None:
            found.append((TokenClass.REQUEST, usage.compute_us if fee.unit == "hour" else max(usage.request, 1), fee))
    return found


def _rate_lines(
    books: Books, pins: Pins, at_us: int, payer: Payer, charged: AttemptUsage
) -> tuple[tuple[RatedLine, ...], list[_Rates], str | None]:
    lines: list[RatedLine] = []
    by_currency: dict[str, _Rates] = {}
    unpriced: str | None = None
    found = quantities(books, pins, at_us, charged)
    by_the_hour = any(row is not None and row.unit == "hour" for _, _, row in found)
    for token_class, quantity, row in found:
        if row is None:
            if by_the_hour:
                lines.append(RatedLine(token_class, quantity, None, None, 0, 0, 0, 0))
                continue
            unpriced = unpriced or _no_price(charged, token_class)
            lines.append(RatedLine(token_class, quantity, None, None, None, None, None, None))
            continue
        rates = by_currency.get(row.currency)
        if rates is None:
            rates = by_currency[row.currency] = _rates_to(books, pins, at_us, payer, row.currency)
        unpriced = unpriced or rates.why_not
        line = _line(token_class, quantity, row, rates)
        if line.price_row_id is None:
            unpriced = unpriced or f"the amount of {quantity} {token_class} is beyond 64 bits"
        lines.append(line)
    return tuple(lines), list(by_currency.values()), unpriced


def _line(token_class: TokenClass, quantity: int, row: PriceRow, rates: _Rates) -> RatedLine:
    scaled = quantity * row.amount_micro * NANO_PER_MICRO
    unit = UNIT_SIZE[row.unit]
    settled, policy, reference = (
        None if quote is None else divide_half_even(scaled * quote.numerator, unit * quote.denominator)
        for quote in (rates.settled, rates.policy, rates.reference)
    )
    listed = divide_half_even(scaled, unit)
    if max(listed, settled or 0, policy or 0, reference or 0) > INT64_MAX:
        return RatedLine(token_class, quantity, None, None, None, None, None, None)
    return RatedLine(token_class, quantity, row.id, row.currency, listed, settled, policy, reference)


def _rates_to(books: Books, pins: Pins, at_us: int, payer: Payer, currency: str) -> _Rates:
    if currency == payer.currency:
        return _Rates(IDENTITY, IDENTITY, IDENTITY, None, None)
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
    return _Rates(
        settled,
        find(RateKind.POLICY, currency, payer.currency, at_us, pins.rates),
        find(RateKind.REFERENCE, currency, payer.currency, at_us, pins.rates),
        terms.id if terms is not None else None,
        why_not,
    )


def _rate_ids(used: Sequence[_Rates]) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for rates in used:
        for quote in (rates.settled, rates.policy, rates.reference):
            if quote is not None:
                ids.update(dict.fromkeys(quote.rate_ids))
    return tuple(ids)


def _total(currency: str, amounts: Sequence[int | None]) -> Money | None:
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return Money(currency, total) if total <= INT64_MAX else None


def _list_total(
    books: Books, pins: Pins, at_us: int, payer: Payer, charged: AttemptUsage, lines: Sequence[RatedLine]
) -> Money | None:
    """The sum of the list amounts; None where one is missing or where the book prices the classes in several currencies."""
    currencies = {line.currency for line in lines if line.currency is not None}
    if not lines:
        return Money(_list_currency(books, pins, at_us, charged) or payer.currency, 0)
    if len(currencies) != 1:
        return None
    return _total(currencies.pop(), [line.list_nano for line in lines])


def _list_currency(books: Books, pins: Pins, at_us: int, attempt: AttemptUsage) -> str | None:
    for token_class in (TokenClass.OUTPUT, TokenClass.INPUT, TokenClass.REQUEST):
        row = books.prices.find(attempt.price_list, attempt.model, token_class, at_us=at_us, version=pins.book)
        if row is not None:
            return row.currency
    return None


def _no_price(attempt: AttemptUsage, token_class: TokenClass) -> str:
    kind = ""
    if attempt.service_tier != "default" or attempt.processing != "standard":
        kind = f" (tier {attempt.service_tier}, {attempt.processing})"
    return f"no price for {token_class} of {attempt.model} on price list {attempt.price_list}{kind}"


def _rate_attempt(books: Books, pins: Pins, at_us: int, attempt: AttemptUsage) -> RatedAttempt:
    found = quantities(books, pins, at_us, attempt)
    if not found:
        currency = _list_currency(books, pins, at_us, attempt)
        return RatedAttempt(attempt.sequence, Money(currency, 0) if currency else None, (), None)
    by_the_hour = any(row is not None and row.unit == "hour" for _, _, row in found)
    currency, total, ids = None, 0, []
    for token_class, quantity, row in found:
        if row is None:
            if by_the_hour:
                continue
            return RatedAttempt(attempt.sequence, None, (), _no_price(attempt, token_class))
        terms = books.terms.find_provider(attempt.provider, row.currency, at_us, pins.terms)
        quote: Quote | None = IDENTITY
        paid_in = row.currency
        if terms is not None:
            quote, paid_in = terms.settlement(books.rates, at_us, pins.rates), terms.quote
        if quote is None:
            return RatedAttempt(
                attempt.sequence, None, (), f"no rate in force for provider terms from {row.currency} to {paid_in}"
            )
        if currency not in (None, paid_in):
            return RatedAttempt(attempt.sequence, None, (), "the book prices this model in several currencies")
        currency = paid_in
        total += amount_nano(quantity, row, quote)
        ids.append(row.id)
    if total > INT64_MAX or currency is None:
        return RatedAttempt(attempt.sequence, None, (), "the amount is beyond 64 bits")
    return RatedAttempt(attempt.sequence, Money(currency, total), tuple(ids), None)


def _total_cost(books: Books, pins: Pins, at_us: int, attempts: Sequence[RatedAttempt]) -> Money | None:
    """The sum over attempts. Attempts that cost in another currency than the last one are converted at the reference rate;
    None where one has no price or no rate leads there (each attempt keeps its own cost in any case)."""
    if any(attempt.unpriced is not None for attempt in attempts):
        return None
    costs = [attempt.cost for attempt in attempts if attempt.cost is not None]
    if not costs:
        return None
    currency, total = costs[-1].currency, 0
    for cost in costs:
        if cost.currency == currency:
            total += cost.nano
            continue
        if cost.nano == 0:
            continue
        quote = books.rates.find(RateKind.REFERENCE, cost.currency, currency, at_us, pins.rates)
        if quote is None:
            return None
        total += divide_half_even(cost.nano * quote.numerator, quote.denominator)
    return Money(currency, total) if total <= INT64_MAX else None


def check_settleable(
    books: Books,
    pins: Pins,
    *,
    at_us: int,
    payer: Payer,
    price_list: str,
    model: str,
    token_class: TokenClass = TokenClass.OUTPUT,
) -> None:
    """That a call on this price list and model can be charged to the payer. Raises `NoPrice`, `NoTerms` or `NoRate`."""
    row = books.prices.find(price_list, model, token_class, at_us=at_us, version=pins.book)
    if row is None and books.prices.covers(price_list, model, at_us=at_us, version=pins.book):
        row = books.prices.find(price_list, model, TokenClass.REQUEST, at_us=at_us, version=pins.book)
    if row is None:
        raise NoPrice(
            f"no price for {token_class} of {model} on price list {price_list}; publish one before calling it"
        )
    _settled_quote(books, pins, at_us, payer, row.currency)


def _settled_quote(books: Books, pins: Pins, at_us: int, payer: Payer, currency: str) -> Quote:
    rates = _rates_to(books, pins, at_us, payer, currency)
    if rates.settled is None:
        assert rates.why_not is not None
        if rates.terms_id is None:
            raise NoTerms(f"{rates.why_not}; record terms for team {payer.team_id}")
        raise NoRate(f"{rates.why_not}; record a reference rate")
    return rates.settled


def worst_case(
    books: Books,
    pins: Pins,
    *,
    at_us: int,
    payer: Payer,
    price_list: str,
    model: str,
    input_tokens: int,
    output_tokens: int,
) -> Money:
    """The most this call can settle at: every input token at the dearest input class, every output token at the dearest
    output class, the higher tier where it lies within the estimate's error, the request fee. Rounded up to a nano.

    Raises `NoPrice`, `NoTerms` or `NoRate` when the call could not be charged at all.
    """
    check_settleable(books, pins, at_us=at_us, payer=payer, price_list=price_list, model=model)
    reach = input_tokens * (100 + ESTIMATE_ERROR_PERCENT) // 100
    total = 0
    for classes, quantity in (
        (INPUT_CLASSES, input_tokens),
        (OUTPUT_CLASSES, output_tokens),
        ((TokenClass.REQUEST,), 1),
    ):
        dearest = 0
        for token_class in classes:
            for row in books.prices.tiers(price_list, model, token_class, at_us=at_us, version=pins.book):
                if row.min_input_tokens >= reach and row.min_input_tokens:
                    continue
                if (row.unit == "mtok") == (token_class is TokenClass.REQUEST):
                    continue
                quote = _settled_quote(books, pins, at_us, payer, row.currency)
                count = quantity if row.unit != "hour" else 0
                numerator = count * row.amount_micro * NANO_PER_MICRO * quote.numerator
                dearest = max(dearest, -(-numerator // (UNIT_SIZE[row.unit] * quote.denominator)))
        total += dearest
    return Money(payer.currency, total)
