"""The strategies' laws, on a simulated clock: which of a model's routes is asked first, and what makes another one first."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from billing.exchange import RateKind
from billing.prices import PriceRow
from billing.times import format_time, now_us
from billing.usage import TokenClass
from gateway.api.chat import ChatCompletions
from gateway.routing.costs import CatalogView
from gateway.routing.pace import HALF_S, Pace
from gateway.routing.prefix import prefix_of
from gateway.routing.router import Router
from gateway.routing.routes import Asker, Route
from gateway.routing.strategies import LEAST_LOAD, OVERLOAD
from gateway.settings import ModelSettings, ProviderSettings, RouteSettings, Settings
from gateway.upstream.base import Call
from tests.billing.helpers import books, price, rate_row


def router(strategy: str, names: str = "abc", *, catalog: CatalogView | None = None, **of_each: Any) -> Router:
    providers = {
        name: ProviderSettings(kind="openai", base_url=f"http://127.0.0.1:1/{name}", **of_each) for name in names
    }
    routes = [RouteSettings(provider=name, model="m") for name in names]
    model = ModelSettings(name="model", routes=routes, strategy=cast(Any, strategy))
    return Router(Settings(providers=providers, models=[model]), catalog=catalog, seed=1)


def asking(**fields: object) -> Call:
    body = {"model": "model", "messages": [{"role": "user", "content": "hello"}], **fields}
    return ChatCompletions().read(json.encode(body))


def order(of: Router, now_s: float = 0.0, call: Call | None = None, team: str = "t") -> str:
    return "".join(
        route.provider_name for route in of.plan("model", now_s, Asker("key", team, call=call or asking())).routes
    )


def route(of: Router, name: str) -> Route:
    return next(each for each in of.find("model").routes if each.provider_name == name)


# ---- cheapest ----


def priced(*rows: PriceRow) -> CatalogView:
    book = books(*rows, rate_row(1, "USD/CNY", RateKind.REFERENCE, "7", format_time(now_us())))
    return cast(CatalogView, SimpleNamespace(ready=True, snapshot=SimpleNamespace(books=book, pins=book.pins())))


def row(number: int, name: str, token_class: TokenClass, amount: str, currency: str = "USD", **more: Any) -> PriceRow:
    return price(number, token_class, amount, currency=currency, price_list=name, model="m", **more)


CLASSES = (TokenClass.INPUT, TokenClass.OUTPUT)


async def test_the_cheapest_depends_on_the_size_of_the_request() -> None:
    """One is cheap to tell much, the other is cheap to hear much from; a threshold is a cliff."""
    catalog = priced(
        row(1, "a", TokenClass.INPUT, "1"),
        row(2, "a", TokenClass.OUTPUT, "9"),
        row(3, "b", TokenClass.INPUT, "2"),
        row(4, "b", TokenClass.OUTPUT, "3"),
    )
    of = router("cheapest", "ab", catalog=catalog)
    long = [{"role": "user", "content": "word " * 9000}]
    assert order(of, call=asking(messages=long, max_tokens=10)) == "ab"
    assert order(of, call=asking(max_tokens=4000)) == "ba"
    assert order(of) == "ba", "without a cap some output is expected"


async def test_prices_in_two_currencies_are_compared_at_the_reference_rate_and_the_unpriced_comes_last() -> None:
    catalog = priced(
        *(row(number, "b", each, "6.9", "CNY") for number, each in enumerate(CLASSES, 1)),
        *(row(number, "c", each, "1") for number, each in enumerate(CLASSES, 3)),
    )
    assert order(router("cheapest", catalog=catalog)) == "bca"
    assert order(router("cheapest", catalog=None)) == "abc"


async def test_a_request_fee_weighs_on_small_requests() -> None:
    catalog = priced(
        *(row(number, "a", each, "1") for number, each in enumerate(CLASSES, 1)),
        row(3, "a", TokenClass.REQUEST, "0.01", unit="request"),
        *(row(number, "b", each, "2") for number, each in enumerate(CLASSES, 4)),
    )
    of = router("cheapest", "ab", catalog=catalog)
    assert order(of, call=asking(max_tokens=100)) == "ba"
    assert order(of, call=asking(max_tokens=50_000)) == "ab"


# ---- fastest ----


def measure(of: Router, name: str, now_s: float, took_s: float) -> None:
    pace = route(of, name).pace(False)
    assert pace is not None
    pace.answered(now_s, took_s)


async def test_the_fastest_is_first_and_a_change_is_noticed() -> None:
    of = router("fastest")
    for name, took_s in zip("abc", (0.9, 0.2, 0.5), strict=True):
        measure(of, name, 0.0, took_s)
    assert order(of, 0.1) == "bca"
    for second in range(1, 20):
        measure(of, "b", float(second), 3.0)
        measure(of, "c", float(second), 0.5)
        measure(of, "a", float(second), 0.9)
    assert order(of, 20.0) == "cab"


async def test_what_is_unknown_is_tried_once_at_a_time() -> None:
    of = router("fastest")
    measure(of, "a", 0.0, 0.1)
    assert order(of, 1.0)[0] == "b"
    route(of, "b").in_flight = 1
    assert order(of, 1.0) == "cab"


async def test_a_slow_route_is_tried_again_and_its_answer_decides() -> None:
    """Ten times as slow is forgotten in log2(10) half-lives; a call that went out stops the next ones from following."""
    of = router("fastest", "ab")
    measure(of, "b", 0.0, 1.0)
    for now_s in range(0, 400, 5):
        measure(of, "a", float(now_s), 0.1)
        if order(of, now_s + 1.0)[0] == "b":
            break
    assert 3 * HALF_S < now_s < 4 * HALF_S
    pace = route(of, "b").pace(False)
    assert pace is not None
    pace.asked(now_s + 1.0)
    assert order(of, now_s + 1.1)[0] == "a"
    pace.answered(now_s + 2.0, 0.01)
    for second in range(3, 30, 3):
        pace.answered(now_s + float(second), 0.01)
    assert order(of, now_s + 31.0)[0] == "b"


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 60)), min_size=1, max_size=200))
def test_a_pace_lies_between_the_extremes_of_what_was_measured(steps: list[tuple[float, float]]) -> None:
    pace, now_s = Pace(), 0.0
    for after_s, took_s in steps:
        now_s += after_s
        pace.answered(now_s, took_s)
    took = [each for _, each in steps]
    assert pace.mean_s is not None and min(took) - 1e-9 <= pace.mean_s <= max(took) + 1e-9
    assert pace.expected_s(now_s, asking=False) == pytest.approx(pace.mean_s)
    at_95 = pace.percentile_s(0.95)
    assert (at_95 is None) == (len(took) < 20)
    if at_95 is not None:
        last = took[-128:]
        assert sum(each <= at_95 for each in last) >= 0.95 * len(last)


# ---- least_busy ----


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3))
async def test_the_least_busy_is_first(loads: list[int]) -> None:
    of = router("least_busy")
    for name, load in zip("abc", loads, strict=True):
        of.provider(name).in_flight = load
    assert [of.provider(name).in_flight for name in order(of)] == sorted(loads)


async def test_equals_share() -> None:
    of = router("least_busy")
    first = Counter(order(of)[0] for _ in range(3000))
    assert all(900 < count < 1100 for count in first.values())


# ---- prefix_affinity ----


def turn(conversation: int, turns: int, system: str = "Be brief.") -> Call:
    said = [{"role": "system", "content": system}, {"role": "user", "content": f"question {conversation}"}]
    for number in range(turns):
        said += [{"role": "assistant", "content": f"answer {number}"}, {"role": "user", "content": f"more {number}"}]
    return asking(messages=said)


async def test_a_conversation_stays_on_its_replica_and_conversations_spread() -> None:
    of = router("prefix_affinity", "abcd")
    first = Counter[str]()
    for conversation in range(400):
        homes = {order(of, call=turn(conversation, turns))[0] for turns in range(4)}
        assert len(homes) == 1
        first[homes.pop()] += 1
    assert all(60 < first[name] < 140 for name in "abcd"), first


async def test_when_a_replica_goes_only_its_own_conversations_move_and_they_come_back() -> None:
    of = router("prefix_affinity", "abcd")
    before = {number: order(of, call=turn(number, 1)) for number in range(100)}
    route(of, "c").breaker.hold(0.0, 60.0)
    for number, whole in before.items():
        assert order(of, 1.0, turn(number, 2)) == whole.replace("c", "")
    assert {number: order(of, 61.0, turn(number, 3)) for number in before} == before


async def test_affinity_falls_away_from_an_overloaded_replica() -> None:
    of = router("prefix_affinity", "ab")
    call = turn(7, 0)
    home, other = tuple(order(of, call=call))
    of.provider(home).in_flight = LEAST_LOAD - 1
    assert order(of, call=call) == home + other, "a few calls overload nobody"
    of.provider(home).in_flight = 40
    of.provider(other).in_flight = 20
    assert order(of, call=call) == other + home
    of.provider(other).in_flight = 40
    assert order(of, call=call) == home + other, f"{OVERLOAD} times an even load is none"


async def test_teams_with_one_prompt_spread_unless_they_share_a_cache() -> None:
    call = turn(1, 0)
    apart = {order(router("prefix_affinity"), call=call, team=f"team {number}")[0] for number in range(40)}
    shared = router("prefix_affinity", share_prefix_cache=True)
    assert apart == set("abc")
    assert len({order(shared, call=call, team=f"team {number}") for number in range(40)}) == 1


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_body_has_a_prefix(value: object) -> None:
    for name in ("messages", "prompt", "input"):
        call = asking()
        call.fields = {name: Raw(json.encode(value))}
        assert len(prefix_of(call)) == 16 and prefix_of(call) == prefix_of(call)


def test_the_names_in_the_settings_are_those_of_the_strategies() -> None:
    from typing import get_args, get_type_hints

    from gateway.routing.strategies import STRATEGIES

    assert set(get_args(get_type_hints(ModelSettings)["strategy"])) == set(STRATEGIES)
