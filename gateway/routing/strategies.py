"""In which order a model's routes are tried for one request: one function a strategy, over what is known of the routes now.

All are pure but for the jitter that they are given. Nothing here looks whether a route may be called; the router drops those.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from gateway.routing.costs import Costs
from gateway.routing.prefix import prefix_of

if TYPE_CHECKING:
    from gateway.routing.routes import Model, Route
    from gateway.upstream.base import Call

OVERLOAD: Final = 1.25
"""A replica with more than this share of an even load is passed over by `prefix_affinity` (Mirrokni et al. 2018)."""
LEAST_LOAD: Final = 4
"""So many calls at once overload nobody."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an order may depend on, beside the routes. `call` is None where nobody asks (a look from outside)."""

    now_s: float
    jitter: random.Random
    costs: Costs
    call: Call | None = None
    team_id: str = ""


Order = Callable[["Model", Asked], list["Route"]]


def by_priority(model: Model, asked: Asked) -> list[Route]:
    return list(model.routes)


def by_weight(model: Model, asked: Asked) -> list[Route]:
    """A weighted shuffle (Efraimidis and Spirakis 2006): the first is drawn by weight, the rest follow as fallbacks.

    A route of weight 0 is never drawn, only fallen back to.
    """
    keyed = [
        (asked.jitter.random() ** (1.0 / route.settings.weight) if route.settings.weight else -1.0, -place, route)
        for place, route in enumerate(model.routes)
    ]
    return [route for _, _, route in sorted(keyed, key=lambda item: item[:2], reverse=True)]


def by_cost(model: Model, asked: Asked) -> list[Route]:
    """The cheapest for a request of this size first; what has no price comes last, and equals stay in their order."""
    if asked.call is None:
        return list(model.routes)
    costs = asked.costs.of(model.routes, asked.call)
    keyed = [
        (cost is None, cost or 0, place, route)
        for place, (cost, route) in enumerate(zip(costs, model.routes, strict=True))
    ]
    return [route for _, _, _, route in sorted(keyed, key=lambda item: item[:3])]


def by_pace(model: Model, asked: Asked) -> list[Route]:
    """The one that began its answers soonest of late."""

    streamed = asked.call is not None and asked.call.streamed

    def expected_s(route: Route) -> float:
        pace = route.pace(streamed)
        return math.inf if pace is None else pace.expected_s(asked.now_s, asking=route.in_flight > 0)

    return sorted(model.routes, key=expected_s)


def by_load(model: Model, asked: Asked) -> list[Route]:
    """The fewest running calls per weight first; among equals, any. A route of weight 0 comes last."""

    def load(route: Route) -> tuple[float, float]:
        weight = route.settings.weight
        return (route.provider.in_flight + 1) / weight if weight else math.inf, asked.jitter.random()

    return sorted(model.routes, key=load)


def by_prefix(model: Model, asked: Asked) -> list[Route]:
    """The same conversation to the same replica, by weighted rendezvous hashing (Schindelhauer and Schomaker 2005): when a
    replica goes, only its own conversations move. One that is overloaded comes after all that are not.
    """
    if asked.call is None:
        return list(model.routes)
    prefix = prefix_of(asked.call)
    total = sum(route.provider.in_flight for route in model.routes)
    most = max(LEAST_LOAD, math.ceil(OVERLOAD * (total + 1) / len(model.routes)))

    def key(route: Route) -> tuple[bool, float]:
        shared = route.provider.settings.share_prefix_cache
        return route.provider.in_flight >= most, -_score(route, prefix, "" if shared else asked.team_id)

    return sorted(model.routes, key=key)


def _score(route: Route, prefix: bytes, team_id: str) -> float:
    name = f"{team_id}\n{route.provider_name}\n{route.model}\n".encode()
    drawn = int.from_bytes(blake2b(name + prefix, digest_size=8).digest(), "big")
    uniform = (drawn + 1) / (2**64 + 1)
    return route.settings.weight / -math.log(uniform)


STRATEGIES: Final[Mapping[str, Order]] = {
    "priority": by_priority,
    "weighted": by_weight,
    "cheapest": by_cost,
    "fastest": by_pace,
    "least_busy": by_load,
    "prefix_affinity": by_prefix,
}
