"""Law: a request rated from a plan costs, line by line and to the last nano, what looking everything up says."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from billing.books import Books, Pins
from billing.exchange import REFERENCE_MAX_AGE_US, RateBook, RateKind, RateRow
from billing.money import INT64_MAX, MICRO, PICO
from billing.plans import plans_of
from billing.prices import PriceBook, PriceRow
from billing.rated import AttemptUsage, Payer
from billing.rating import rate, rate_in_full
from billing.selling import SellBook, SellRow
from billing.terms import TermsBook, TermsRow
from billing.usage import TokenClass, Usage
from tests.billing.helpers import FOUNDING, NOON_US, used

MOMENTS = (
    NOON_US,
    NOON_US + 1,
    NOON_US + 1_000_000,
    NOON_US + REFERENCE_MAX_AGE_US,
    NOON_US + REFERENCE_MAX_AGE_US + 1,
)
CURRENCIES = ("USD", "CNY", "EUR")
CLASSES = (TokenClass.INPUT, TokenClass.CACHE_READ, TokenClass.OUTPUT, TokenClass.REQUEST)

moment = st.sampled_from(MOMENTS)
currency = st.sampled_from(CURRENCIES)
price_list = st.sampled_from(("p", "q"))
amount = st.one_of(st.integers(0, 10**9), st.just(10**15))


@st.composite
def a_price(draw: st.DrawFn, row_id: int) -> PriceRow:
    kind = draw(st.sampled_from(CLASSES))
    return PriceRow(
        row_id, draw(st.integers(1, 3)), draw(price_list), "m", kind, draw(currency), draw(amount),
        "request" if kind is TokenClass.REQUEST else "mtok", draw(st.sampled_from(("default", "flex"))), "standard",
        draw(st.sampled_from((0, 0, 100))), draw(moment), None,
    )  # fmt: skip


@st.composite
def a_rate(draw: st.DrawFn, row_id: int) -> RateRow:
    base, quote = draw(st.permutations(CURRENCIES))[:2]
    return RateRow(
        row_id, base, quote, draw(st.sampled_from(RateKind)), draw(st.integers(1, 9 * PICO)), "s", draw(moment), 0
    )


@st.composite
def terms(draw: st.DrawFn, row_id: int) -> TermsRow:
    fixed = draw(st.booleans())
    base, quote = draw(st.permutations(CURRENCIES))[:2]
    team = draw(st.sampled_from(("t", "t", None)))
    return TermsRow(
        row_id, team, None if team else "provider", "fixed" if fixed else "market_plus_bps",
        draw(st.one_of(st.none(), st.integers(1, 9 * PICO))) if fixed else None,
        None if fixed else draw(st.integers(-500, 500)), base, quote, draw(moment),
    )  # fmt: skip


@st.composite
def a_sell(draw: st.DrawFn, row_id: int) -> SellRow:
    own = draw(st.booleans())
    return SellRow(
        row_id, "t", draw(st.sampled_from((None, "p"))), draw(st.sampled_from((None, "m"))), "q" if own else None,
        None if own else draw(st.integers(0, 3 * MICRO)), draw(moment),
    )  # fmt: skip


PRICED = [
    PriceRow(at, 1, listed, "m", kind, "USD", 280_000 * at, "mtok", "default", "standard", above, 0, None)
    for at, (listed, kind, above) in enumerate(itertools.product("pq", CLASSES[:3], (0, 100)), 1)
]
RATED = [
    RateRow(1, "USD", "CNY", RateKind.REFERENCE, 6_652_900_000_000, "s", NOON_US - 1, 0),
    RateRow(2, "USD", "CNY", RateKind.POLICY, 7_300_000_000_000, "s", 0, 0),
    RateRow(3, "USD", "EUR", RateKind.REFERENCE, 900_000_000_000, "s", NOON_US - 1, 0),
]
AGREED = [TermsRow(at, "t", None, "fixed", PICO // at, None, "USD", pays, 0) for at, pays in ((1, "CNY"), (2, "EUR"))]


@st.composite
def worlds(draw: st.DrawFn) -> Books:
    """A book that prices everything, and rows laid over it that are there or not, in force or not, of any currency."""

    def some(make: object, first: int, most: int) -> list[object]:
        return [draw(make(first + at)) for at in range(draw(st.integers(0, most)))]  # type: ignore[operator]

    return Books(
        PriceBook([*PRICED, *some(a_price, len(PRICED) + 1, 4)]),  # type: ignore[list-item]
        RateBook([*RATED, *some(a_rate, 4, 3)]),  # type: ignore[list-item]
        TermsBook([*AGREED, *some(terms, 3, 2)]),  # type: ignore[list-item]
        SellBook(some(a_sell, 1, 2)),  # type: ignore[arg-type]
    )


usages = st.builds(
    Usage, input=st.integers(0, 300), cache_read=st.sampled_from((0, 0, 100)), output=st.sampled_from((0, 7, 10**7)),
    request=st.sampled_from((0, 1)), reasoning=st.integers(0, 5),
)  # fmt: skip
routes = st.tuples(currency, price_list, st.sampled_from(("default", "default", "flex")))
pinned = st.builds(Pins, st.integers(1, 3), st.integers(2, 6), st.integers(2, 4), st.integers(0, 2))


@settings(max_examples=150, deadline=None)
@given(
    worlds(), routes, st.lists(pinned, min_size=1, max_size=2), st.lists(moment, min_size=1, max_size=3),
    st.lists(usages, min_size=2, max_size=4),
)  # fmt: skip
def test_a_plan_changes_no_figure(
    world: Books, route: tuple[str, str, str], pins: list[Pins], moments: list[int], used_up: list[Usage]
) -> None:
    pays_in, listed, tier = route
    payer = Payer("t", pays_in)
    for usage, at_us, pin in itertools.product(used_up, moments, pins):
        attempt = AttemptUsage(1, listed, "m", "provider", usage, tier)
        planned = plans_of(world).rate(world, pin, at_us, payer, attempt)
        in_full = rate_in_full(world, pin, at_us=at_us, payer=payer, charged=attempt, attempts=[attempt])
        assert planned is None or planned == in_full
        charges = [line.settled_nano for line in in_full.lines]
        if in_full.settled is None:
            assert not any(each is not None for each in charges), "a request is priced whole or not at all"
        else:
            assert in_full.settled.nano == sum(each for each in charges if each is not None) and None not in charges


def test_the_founding_case_is_rated_from_a_plan() -> None:
    attempt = used(Usage(input=1_000_000, output=1_000_000))
    planned = plans_of(FOUNDING).rate(FOUNDING, FOUNDING.pins(), NOON_US, Payer("team_a", "CNY"), attempt)
    assert planned is not None and planned.settled is not None and planned.policy is not None
    assert (planned.settled.amount, planned.policy.amount) == ("0.7", "5.11")


def test_a_sum_beyond_64_bits_is_rated_the_long_way() -> None:
    attempt, payer = used(Usage(output=INT64_MAX // 400)), Payer("team_a", "CNY")
    assert plans_of(FOUNDING).rate(FOUNDING, FOUNDING.pins(), NOON_US, payer, attempt) is None
    rated = rate(FOUNDING, FOUNDING.pins(), at_us=NOON_US, payer=payer, charged=attempt, attempts=[attempt])
    assert rated.settled is None and rated.unpriced is not None and "64 bits" in rated.unpriced
