"""Rating: what one request costs, from its usage and the books as they were pinned when it was opened.

An amount is quantity x price x rate as an exact rational, rounded half-even to nano once (`money.divide_half_even`); totals
are sums of such amounts. What cannot be priced has no amount and a reason, never a zero. Pure functions over values: nothing
here reads a clock or a database, so whoever rates a request again with the same pins gets the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from billing.amounts import (
    NANO_PER_MICRO,
    Priced,
    amount_nano,
    margin_of,
    no_price,
    no_rate,
    paid_at,
    quantities,
    rate_hours,
    rate_ids_of,
    rate_lines,
    rates_to,
    whole_or_nothing,
    whole_price,
)
from billing.books import Books, Pins
from billing.errors import NoPrice, NoRate, NoTerms, Unbounded
from billing.exchange import Quote, RateKind
from billing.money import INT64_MAX, MICRO, Money, divide_half_even
from billing.plans import plans_of
from billing.prices import UNIT_SIZE, PriceRow
from billing.rated import OVERFLOW, AttemptUsage, Payer, Rated, RatedAttempt, RatedLine
from billing.selling import Sold
from billing.usage import INPUT_CLASSES, OUTPUT_CLASSES, TokenClass

__all__ = [
    "ESTIMATE_ERROR_PERCENT",
    "NANO_PER_MICRO",
    "AttemptUsage",
    "Payer",
    "Rated",
    "RatedAttempt",
    "RatedLine",
    "check_settleable",
    "rate",
    "rate_in_full",
    "sold_to",
    "worst_case",
]

ESTIMATE_ERROR_PERCENT: Final = 25
"""How far above the estimate the real input may lie: a threshold within that reach counts as crossed in a worst case."""


def rate(
    books: Books,
    pins: Pins,
    *,
    at_us: int,
    payer: Payer,
    charged: AttemptUsage | None,
    attempts: Sequence[AttemptUsage],
) -> Rated:
    """The request's amounts: charged is what the answering attempt used (None: nobody answered, the charge is zero) at the
    team's sell price, the cost is the sum over all attempts at the providers' prices. Never raises for a missing price, rate or
    terms: the reason is in the answer."""
    if charged is not None and len(attempts) == 1 and attempts[0] is charged:
        planned = plans_of(books).rate(books, pins, at_us, payer, charged)
        if planned is not None:
            return planned
    return rate_in_full(books, pins, at_us=at_us, payer=payer, charged=charged, attempts=attempts)


def rate_in_full(
    books: Books,
    pins: Pins,
    *,
    at_us: int,
    payer: Payer,
    charged: AttemptUsage | None,
    attempts: Sequence[AttemptUsage],
) -> Rated:
    """`rate` without plans: every row looked up, for one request of any kind."""
    priced = [quantities(books, pins, at_us, attempt) for attempt in attempts]
    rated_attempts = tuple(
        [_rate_attempt(books, pins, at_us, each, found) for each, found in zip(attempts, priced, strict=True)]
    )
    cost = _total_cost(books, pins, at_us, rated_attempts)
    if charged is None:
        zero = Money(payer.currency, 0)
        list_currency = _list_currency(books, pins, at_us, attempts[0]) if attempts else None
        listed = Money(list_currency or payer.currency, 0)
        margin, margin_rates = margin_of(books, pins, at_us, zero, cost)
        return Rated((), listed, zero, zero, zero, cost, (), margin_rates, None, rated_attempts, None, None, margin)
    sold = sold_to(books, pins, at_us, payer, charged.price_list, charged.model)
    found = None
    if sold.price_list == charged.price_list:
        found = next((each for attempt, each in zip(attempts, priced, strict=True) if attempt is charged), None)
    else:
        charged = replace(charged, price_list=sold.price_list)
    if found is None:
        found = quantities(books, pins, at_us, charged)
    lines, rates_used, unpriced = rate_lines(books, pins, at_us, payer, charged, found, sold.multiplier_micro)
    if not (unpriced or "").startswith(OVERFLOW) and _most(lines) > INT64_MAX:
        unpriced = f"{OVERFLOW}: the sum of the lines is beyond 64 bits"
        lines = tuple([line.without_amounts() for line in lines])
    known_nano = sum(line.settled_nano or 0 for line in lines)
    lines = whole_or_nothing(lines)
    settled, policy, reference = _totals(payer.currency, lines)
    margin, margin_rates = margin_of(books, pins, at_us, settled, cost)
    return Rated(
        lines,
        _list_total(books, pins, at_us, payer, charged, lines),
        settled,
        policy,
        reference,
        cost,
        tuple([line.price_row_id for line in lines if line.price_row_id is not None]),
        rate_ids_of(rates_used, margin_rates),
        next((used.terms_id for used in rates_used if used.terms_id is not None), None),
        rated_attempts,
        unpriced,
        sold.sell_id or None,
        margin,
        known_nano if settled is None else 0,
    )


def sold_to(books: Books, pins: Pins, at_us: int, payer: Payer, price_list: str, model: str) -> Sold:
    """On which list, and at which multiple of it, this team buys what this route gives."""
    return books.sell.sold(
        books.prices, payer.team_id, price_list, model, at_us=at_us, book=pins.book, version=pins.sell
    )


def _most(lines: Sequence[RatedLine]) -> int:
    """The larger of what the lines settle at and list at."""
    return max(sum(line.settled_nano or 0 for line in lines), sum(line.list_nano or 0 for line in lines))


def _totals(currency: str, lines: Sequence[RatedLine]) -> tuple[Money | None, Money | None, Money | None]:
    """Settled, policy and reference; a sum that lacks an amount is None."""
    settled: int | None = 0
    policy: int | None = 0
    reference: int | None = 0
    for line in lines:
        settled = None if settled is None or line.settled_nano is None else settled + line.settled_nano
        policy = None if policy is None or line.policy_nano is None else policy + line.policy_nano
        reference = None if reference is None or line.reference_nano is None else reference + line.reference_nano
    return _money(currency, settled), _money(currency, policy), _money(currency, reference)


def _money(currency: str, nano: int | None) -> Money | None:
    return None if nano is None or nano > INT64_MAX else Money(currency, nano)


def _list_total(
    books: Books, pins: Pins, at_us: int, payer: Payer, charged: AttemptUsage, lines: Sequence[RatedLine]
) -> Money | None:
    """The sum of the list amounts; None where one is missing or where the book prices the classes in several currencies."""
    if not lines:
        return Money(_list_currency(books, pins, at_us, charged) or payer.currency, 0)
    currency: str | None = None
    total = 0
    for line in lines:
        if line.list_nano is None or (currency is not None and line.currency not in (None, currency)):
            return None
        currency = line.currency or currency
        total += line.list_nano
    return None if currency is None else _money(currency, total)


def _list_currency(books: Books, pins: Pins, at_us: int, attempt: AttemptUsage) -> str | None:
    for token_class in (TokenClass.OUTPUT, TokenClass.INPUT, TokenClass.REQUEST):
        row = books.prices.find(attempt.price_list, attempt.model, token_class, at_us=at_us, version=pins.book)
        if row is not None:
            return row.currency
    return None


def _rate_attempt(books: Books, pins: Pins, at_us: int, attempt: AttemptUsage, found: Priced) -> RatedAttempt:
    if attempt.by_the_hour:
        return rate_hours(books, pins, at_us, attempt)
    if not found:
        named = _list_currency(books, pins, at_us, attempt)
        return RatedAttempt(attempt.sequence, Money(named, 0) if named else None, (), None)
    currency: str | None = None
    total = 0
    ids: list[int] = []
    for token_class, quantity, row in found:
        if row is None:
            if whole_price(books, pins, at_us, found) is not None:
                continue
            return RatedAttempt(attempt.sequence, None, (), no_price(attempt, token_class))
        quote, paid_in = paid_at(books, pins, at_us, attempt.provider, row.currency)
        if quote is None:
            return RatedAttempt(attempt.sequence, None, (), no_rate(row.currency, paid_in))
        if currency not in (None, paid_in):
            return RatedAttempt(attempt.sequence, None, (), "the book prices this model in several currencies")
        currency = paid_in
        total += amount_nano(quantity, row, quote)
        ids.append(row.id)
    if total > INT64_MAX or currency is None:
        return RatedAttempt(attempt.sequence, None, (), f"{OVERFLOW}: the cost is beyond 64 bits")
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
) -> None:
    """That a call on this price list and model can be charged to the payer: its input and its output, or the whole of it by the
    request. Raises `NoPrice` (`Unbounded` where it is priced by what only the answer counts), `NoTerms` or `NoRate`."""
    price_list = sold_to(books, pins, at_us, payer, price_list, model).price_list
    by_class = {
        each: books.prices.find(price_list, model, each, at_us=at_us, version=pins.book)
        for each in (TokenClass.OUTPUT, TokenClass.INPUT, TokenClass.REQUEST)
    }
    if not books.prices.covers(price_list, model, at_us=at_us, version=pins.book):
        for each in TokenClass:
            row = books.prices.find(price_list, model, each, at_us=at_us, version=pins.book)
            if row is not None:
                check_bounded(row, model)
        missing = next(each for each, row in by_class.items() if row is None)
        raise NoPrice(f"no price for {missing} of {model} on price list {price_list}; publish one before calling it")
    for row in by_class.values():
        if row is not None:
            _settled_quote(books, pins, at_us, payer, row.currency)


def _settled_quote(books: Books, pins: Pins, at_us: int, payer: Payer, currency: str) -> Quote:
    rates = rates_to(books, pins, at_us, payer, currency)
    if rates.settled is None:
        assert rates.why_not is not None
        if rates.terms_id is None:
            raise NoTerms(f"{rates.why_not}; record terms for team {payer.team_id}")
        raise NoRate(f"{rates.why_not}; record a reference rate")
    return rates.settled


def check_bounded(row: PriceRow, model: str) -> None:
    """Raises `Unbounded` for a price of what only the answer counts."""
    if row.unit in ("image", "second"):
        raise Unbounded(f"{model} is priced by the {row.unit}, and only the answer says how many there are")


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
    """The most this call can settle at, at the team's sell price: every input token at the dearest input class, every output
    token at the dearest output class, the higher tier where it lies within the estimate's error, the request fee. Rounded up.

    Raises `NoPrice`, `NoTerms` or `NoRate` when the call could not be charged at all, `Unbounded` where nobody can say the most.
    """
    check_settleable(books, pins, at_us=at_us, payer=payer, price_list=price_list, model=model)
    sold = sold_to(books, pins, at_us, payer, price_list, model)
    reach = input_tokens * (100 + ESTIMATE_ERROR_PERCENT) // 100
    total = 0
    for classes, quantity in (
        (INPUT_CLASSES, input_tokens),
        (OUTPUT_CLASSES, output_tokens),
        ((TokenClass.REQUEST,), 1),
    ):
        dearest = 0
        for token_class in classes:
            for row in books.prices.tiers(sold.price_list, model, token_class, at_us=at_us, version=pins.book):
                if row.min_input_tokens >= reach and row.min_input_tokens:
                    continue
                if (row.unit == "mtok") == (token_class is TokenClass.REQUEST):
                    check_bounded(row, model)
                    continue
                quote = _settled_quote(books, pins, at_us, payer, row.currency)
                count = quantity if row.unit != "hour" else 0
                numerator = count * row.amount_micro * NANO_PER_MICRO * sold.multiplier_micro * quote.numerator
                dearest = max(dearest, -(-numerator // (UNIT_SIZE[row.unit] * MICRO * quote.denominator)))
        total += dearest
    return Money(payer.currency, total)
