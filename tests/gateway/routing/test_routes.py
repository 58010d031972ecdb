"""Planning: which routes, in which order."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.errors import ApiError
from gateway.routing.breaker import CONSECUTIVE
from gateway.routing.router import Router
from gateway.settings import ModelSettings, ProviderSettings, RouteSettings, Settings


def settings(
    strategy: str = "priority", weights: tuple[int, ...] = (1, 1, 1), **providers: ProviderSettings
) -> Settings:
    named = {name: ProviderSettings(kind="openai", base_url=f"http://127.0.0.1:1/{name}") for name in "abc"}
    routes = [
        RouteSettings(provider=name, model="m", weight=weight) for name, weight in zip("abc", weights, strict=True)
    ]
    model = ModelSettings(name="model", routes=routes, strategy=strategy)  # type: ignore[arg-type]
    return Settings(providers={**named, **providers}, models=[model])


def names(router: Router, now_s: float = 0.0) -> list[str]:
    return [route.provider_name for route in router.plan("model", now_s).routes]


async def test_priority_keeps_the_order_of_the_configuration() -> None:
    assert names(Router(settings())) == ["a", "b", "c"]


async def test_weights_decide_who_is_first_and_all_others_follow() -> None:
    router = Router(settings("weighted", (3, 1, 0)), seed=7)
    plans = [names(router) for _ in range(4000)]
    first = Counter(plan[0] for plan in plans)
    assert all(sorted(plan) == ["a", "b", "c"] and plan[2] == "c" for plan in plans)
    assert 0.72 < first["a"] / 4000 < 0.78


async def test_rule_25_a_route_whose_circuit_is_open_is_not_planned() -> None:
    router = Router(settings())
    route = router.plan("model").routes[0]
    for _ in range(CONSECUTIVE):
        route.breaker.failure(0.0)
    assert names(router, 1.0) == ["b", "c"]
    assert names(router, 60.0) == ["a", "b", "c"]


async def test_a_provider_at_its_own_limit_is_passed_over() -> None:
    router = Router(settings(a=ProviderSettings(kind="openai", base_url="http://127.0.0.1:1", max_parallel=1)))
    router.provider("a").in_flight = 1
    assert names(router) == ["b", "c"]


async def test_an_unknown_model_is_a_404_and_one_that_is_starting_a_503() -> None:
    router = Router(
        Settings(
            providers={"local": ProviderSettings(kind="engine", model="m")},
            models=[ModelSettings(name="model", routes=[RouteSettings(provider="local", model="m")])],
        )
    )
    with pytest.raises(ApiError) as unknown:
        router.plan("other")
    assert (unknown.value.status, unknown.value.code) == (404, "model_not_found")
    with pytest.raises(ApiError) as starting:
        router.plan("model")
    assert (starting.value.status, starting.value.code) == (503, "model_starting")
    router.provider("local").connect("http://127.0.0.1:5")
    assert router.provider("local").url("/chat/completions") == "http://127.0.0.1:5/v1/chat/completions"
    assert names(router) == ["local"]


async def test_a_reload_keeps_connections_and_circuits_of_what_did_not_change() -> None:
    router = Router(settings())
    before = router.plan("model").routes
    for _ in range(CONSECUTIVE):
        before[1].breaker.failure(0.0)
    router.reload(settings(c=ProviderSettings(kind="openai", base_url="http://127.0.0.1:1/new")))
    after = router.find("model").routes
    assert after[0].provider is before[0].provider
    assert after[2].provider is not before[2].provider
    assert names(router, 1.0) == ["a", "c"]
    await router.aclose()
