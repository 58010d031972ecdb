"""Plans: what rating finds in the books for one kind of request, kept so that the next one only multiplies.

Prices, rates, terms and sell prices change at moments and at input thresholds. Between two neighbouring moments and two
neighbouring thresholds every lookup with the same pins answers the same; a plan holds those answers as reduced fractions. It is
made by the lookups that `rating` itself uses and may be forgotten at any time: with it or without it, a request costs the same.
What a plan cannot hold (a missing price, a request fee, several currencies, a sum beyond 64 bits) is rated the long way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import gcd
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from billing.amounts import NANO_PER_MICRO, RatesUsed, margin_of, rate_hours, rate_ids_of, rates_to
from billing.books import Books, Pins
from billing.exchange import IDENTITY, Quote, RateKind
from billing.money import INT64_MAX, MICRO, Money, divide_half_even
from billing.prices import UNIT_SIZE, PriceRow
from billing.rated import AttemptUsage, Payer, Rated, RatedAttempt, RatedLine
from billing.usage import TokenClass

MOST_PLANS: Final = 20_000
"""Beyond this many all are forgotten: pins move on, and old plans are of no use to anybody."""
_FOR_EVER: Final = 1 << 62

Fraction: TypeAlias = tuple[int, int]
"""Nano per unit of quantity: numerator and denominator, reduced."""


class ClassPlan(NamedTuple):
    """One token class: the price rows of sale and cost, and every amount per unit of quantity."""

    price_row_id: int
    cost_row_id: int
    listed: Fraction
    settled: Fraction
    policy: Fraction | None
    reference: Fraction | None
    cost: Fraction


class Plan:
    """Requests of one team on one route, between two moments and two thresholds. `classes` fills as classes are met."""

    __slots__ = (
        "classes", "cost_currency", "list_currency", "margin", "margin_rate_ids", "multiplier_micro", "rate_ids", "rates",
        "sale_list", "sell_id", "terms_id",
    )  # fmt: skip

    def __init__(self, sale_list: str, multiplier_micro: int, sell_id: int | None) -> None:
        self.sale_list = sale_list
        self.multiplier_micro = multiplier_micro
        self.sell_id = sell_id
        self.classes: dict[TokenClass, ClassPlan | None] = {}
        self.list_currency = ""
        self.cost_currency = ""
        self.rates: RatesUsed | None = None
        self.rate_ids: tuple[int, ...] = ()
        self.margin: Quote | None = None
        self.margin_rate_ids: tuple[int, ...] = ()
        self.terms_id: int | None = None


class Plans:
    """The plans of one set of books. They belong to the thread that rates with those books."""

    def __init__(self, books: Books) -> None:
        moments = {row.effective_from_us for row in books.prices.rows}
        moments.update(row.effective_from_us for row in books.terms.rows)
        moments.update(row.effective_from_us for row in books.sell.rows)
        moments.update(row.effective_from_us for row in books.rates.rows)
        oldest_us = books.rates.reference_max_age_us + 1
        moments.update(row.effective_from_us + oldest_us for row in books.rates.rows if row.kind is RateKind.REFERENCE)
        self._moments = sorted(moments)
        self._thresholds = sorted({row.min_input_tokens for row in books.prices.rows} - {0})
        self._span = (0, 0)
        self._plans: dict[tuple[object, ...], Plan | None] = {}

    def rate(self, books: Books, pins: Pins, at_us: int, payer: Payer, attempt: AttemptUsage) -> Rated | None:
        """A request of one attempt, which is charged; None: rate it the long way. `books` are those of `__init__`."""
        total_input = attempt.usage.total_input
        plan = self._plan(books, pins, at_us, payer, attempt, total_input)
        if plan is None:
            return None
        lines: list[RatedLine] = []
        cost_ids: list[int] = []
        listed = settled = policy = reference = cost = 0
        line_policy: int | None
        line_reference: int | None
        classes = plan.classes
        for token_class, quantity in attempt.usage.lines():
            if token_class is TokenClass.REQUEST:
                continue
            try:
                each = classes[token_class]
            except KeyError:
                each = classes[token_class] = _class(books, pins, at_us, payer, attempt, total_input, plan, token_class)
            if each is None:
                return None
            price_id, cost_id, of_list, of_settled, of_policy, of_reference, of_cost = each
            line_list = line_settled = line_policy = line_reference = line_cost = _times(quantity, of_list)
            if of_settled != of_list:
                line_settled = _times(quantity, of_settled)
            if of_policy != of_list:
                line_policy = None if of_policy is None else _times(quantity, of_policy)
            if of_reference != of_list:
                line_reference = None if of_reference is None else _times(quantity, of_reference)
            if of_cost != of_list:
                line_cost = _times(quantity, of_cost)
            listed += line_list
            settled += line_settled
            policy += line_policy or 0
            reference += line_reference or 0
            cost += line_cost
            currency = plan.list_currency
            lines.append(
                RatedLine(
                    token_class, quantity, price_id, currency, line_list, line_settled, line_policy, line_reference
                )
            )
            cost_ids.append(cost_id)
        if not lines or max(listed, settled, policy, reference, cost) > INT64_MAX:
            return None
        sums = (listed, settled, policy, reference, cost)
        answer = self._answer(plan, payer.currency, attempt.sequence, tuple(lines), tuple(cost_ids), sums)
        if attempt.cost_per_hour is None or answer is None or not attempt.by_the_hour:
            return answer
        return _by_the_hour(books, pins, at_us, plan, attempt, answer)

    def _plan(
        self, books: Books, pins: Pins, at_us: int, payer: Payer, attempt: AttemptUsage, total_input: int
    ) -> Plan | None:
        since_us, until_us = self._span
        if not since_us <= at_us < until_us:
            since_us = self._enter(at_us)
        band = bisect_left(self._thresholds, total_input) if self._thresholds else 0
        key = (
            attempt.model, payer.team_id, pins, since_us, band, attempt.price_list, attempt.provider, payer.currency,
            attempt.service_tier, attempt.processing,
        )  # fmt: skip
        try:
            return self._plans[key]
        except KeyError:
            return self._planned(key, _made(books, pins, at_us, payer, attempt, total_input))

    @staticmethod
    def _answer(
        plan: Plan,
        currency: str,
        sequence: int,
        lines: tuple[RatedLine, ...],
        cost_ids: tuple[int, ...],
        sums: tuple[int, int, int, int, int],
    ) -> Rated | None:
        listed, settled, policy, reference, cost_nano = sums
        rates = plan.rates
        assert rates is not None
        rate_ids = plan.rate_ids
        cost = Money(plan.cost_currency, cost_nano)
        margin: Money | None = None
        if cost_nano == 0 or plan.cost_currency == currency:
            margin = Money(currency, settled - cost_nano)
        elif plan.margin is not None:
            converted = divide_half_even(cost_nano * plan.margin.numerator, plan.margin.denominator)
            if converted > INT64_MAX:
                return None
            margin, rate_ids = Money(currency, settled - converted), plan.margin_rate_ids
        return Rated(
            lines,
            Money(plan.list_currency, listed),
            Money(currency, settled),
            None if rates.policy is None else Money(currency, policy),
            None if rates.reference is None else Money(currency, reference),
            cost,
            tuple([line.price_row_id for line in lines]),  # type: ignore[misc]
            rate_ids,
            plan.terms_id,
            (RatedAttempt(sequence, cost, cost_ids, None),),
            None,
            plan.sell_id,
            margin,
        )

    def _enter(self, at_us: int) -> int:
        """Moves to the span between two moments in which `at_us` lies; its first microsecond."""
        at = bisect_right(self._moments, at_us)
        since_us = self._moments[at - 1] if at else 0
        self._span = (since_us, self._moments[at] if at < len(self._moments) else _FOR_EVER)
        return since_us

    def _planned(self, key: tuple[object, ...], plan: Plan | None) -> Plan | None:
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan


def _by_the_hour(
    books: Books, pins: Pins, at_us: int, plan: Plan, attempt: AttemptUsage, answer: Rated
) -> Rated | None:
    """The same, but that it costs engine time."""
    assert plan.rates is not None
    found = rate_hours(books, pins, at_us, attempt)
    if found.cost is None:
        return None
    margin, margin_rates = margin_of(books, pins, at_us, answer.settled, found.cost)
    rate_ids = rate_ids_of([plan.rates], margin_rates)
    return replace(answer, cost=found.cost, attempts=(found,), margin=margin, rate_ids=rate_ids)


def plans_of(books: Books) -> Plans:
    """The plans of these books, made when they are first asked for."""
    if not books.derived:
        books.derived.append(Plans(books))
    plans: Plans = books.derived[0]
    return plans


def _times(quantity: int, of: Fraction) -> int:
    numerator, denominator = of
    if denominator == 1:
        return quantity * numerator
    return divide_half_even(quantity * numerator, denominator)


def _fraction(numerator: int, denominator: int, quote: Quote) -> Fraction:
    numerator, denominator = numerator * quote.numerator, denominator * quote.denominator
    common = gcd(numerator, denominator)
    return numerator // common, denominator // common


def _made(books: Books, pins: Pins, at_us: int, payer: Payer, attempt: AttemptUsage, total_input: int) -> Plan | None:
    """An empty plan; None where a request fee or engine time is part of the price."""
    sold = books.sell.sold(
        books.prices, payer.team_id, attempt.price_list, attempt.model, at_us=at_us, book=pins.book, version=pins.sell
    )
    for price_list in (attempt.price_list, sold.price_list):
        if _row(books, pins, at_us, attempt, total_input, price_list, TokenClass.REQUEST) is not None:
            return None
    return Plan(sold.price_list, sold.multiplier_micro, sold.sell_id or None)


def _row(
    books: Books, pins: Pins, at_us: int, attempt: AttemptUsage, total_input: int, price_list: str, kind: TokenClass
) -> PriceRow | None:
    key = (price_list, attempt.model, kind, attempt.service_tier, attempt.processing)
    return books.prices.row_of(key, at_us, pins.book, total_input)


def _class(
    books: Books,
    pins: Pins,
    at_us: int,
    payer: Payer,
    attempt: AttemptUsage,
    total_input: int,
    plan: Plan,
    kind: TokenClass,
) -> ClassPlan | None:
    """One class of a plan. The first one settles the currencies; another one that differs is None."""
    sale = _row(books, pins, at_us, attempt, total_input, plan.sale_list, kind)
    bought = _row(books, pins, at_us, attempt, total_input, attempt.price_list, kind)
    if sale is None or bought is None:
        return None
    terms = books.terms.find_provider(attempt.provider, bought.currency, at_us, pins.terms)
    quote = IDENTITY if terms is None else terms.settlement(books.rates, at_us, pins.rates)
    paid_in = bought.currency if terms is None else terms.quote
    rates = plan.rates or rates_to(books, pins, at_us, payer, sale.currency)
    if quote is None or rates.settled is None:
        return None
    if plan.rates is None:
        _settle(books, pins, at_us, payer, plan, rates, sale.currency, paid_in)
    elif (sale.currency, paid_in) != (plan.list_currency, plan.cost_currency):
        return None
    numerator = sale.amount_micro * NANO_PER_MICRO * plan.multiplier_micro
    denominator = UNIT_SIZE[sale.unit] * MICRO
    listed = _fraction(numerator, denominator, IDENTITY)
    settled, policy, reference = (
        None if each is None else listed if each is IDENTITY else _fraction(numerator, denominator, each)
        for each in (rates.settled, rates.policy, rates.reference)
    )
    assert settled is not None
    cost = _fraction(bought.amount_micro * NANO_PER_MICRO, UNIT_SIZE[bought.unit], quote)
    # What equals the list amount is that very object, and is multiplied once.
    settled, cost = (listed if each == listed else each for each in (settled, cost))
    policy, reference = (listed if each == listed else each for each in (policy, reference))
    return ClassPlan(sale.id, bought.id, listed, settled, policy, reference, cost)


def _settle(
    books: Books, pins: Pins, at_us: int, payer: Payer, plan: Plan, rates: RatesUsed, currency: str, paid_in: str
) -> None:
    """The currencies of a plan and the rates between them."""
    plan.rates, plan.list_currency, plan.cost_currency = rates, currency, paid_in
    plan.rate_ids = plan.margin_rate_ids = rate_ids_of([rates])
    plan.terms_id = rates.terms_id
    if paid_in != payer.currency:
        plan.margin = books.rates.find(RateKind.REFERENCE, paid_in, payer.currency, at_us, pins.rates)
        if plan.margin is not None:
            plan.margin_rate_ids = rate_ids_of([rates], plan.margin.rate_ids)
