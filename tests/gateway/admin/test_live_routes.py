from __future__ import annotations

import time

import pytest

from gateway.routing.breaker import CONSECUTIVE
from tests.gateway.admin.conftest import Gateway, Operator


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


async def test_routes_say_what_may_be_called_and_whether_it_is_priced(gateway: Gateway, operator: Operator) -> None:
    answer = await operator.get("/routes")
    assert answer["next_cursor"] is None
    remote, local = answer["data"]
    assert remote == {
        "model": "deepseek-chat",
        "provider": "deepseek",
        "provider_model": "deepseek-chat",
        "price_list": "deepseek",
        "weight": 3,
        "strategy": "priority",
        "health": "up",
        "retry_in_ms": 0,
        "in_flight": 0,
        "keys_held": 0,
        "first_content_ms": None,
        "priced": False,
    }
    assert (local["provider"], local["price_list"], local["health"]) == ("local", "metergate", "starting")
    for token_class in ("input", "output"):
        body = {
            "provider": "deepseek",
            "model": "deepseek-chat",
            "token_class": token_class,
            "currency": "USD",
            "amount": "1",
        }
        await operator.post("/prices", body)
    assert (await operator.get("/routes"))["data"][0]["priced"] is True


async def test_a_tripped_route_says_when_it_may_be_called_again(gateway: Gateway, operator: Operator) -> None:
    _, route, _ = next(gateway.router.states(time.monotonic()))
    for _ in range(CONSECUTIVE):
        route.breaker.failure(time.monotonic())
    remote = (await operator.get("/routes"))["data"][0]
    assert remote["health"] == "tripped"
    assert 0 < remote["retry_in_ms"] <= 5_000
