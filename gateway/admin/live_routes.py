"""The routes as they are at this moment: what may be called, what is tripped, and whether it is priced."""

from __future__ import annotations

import time
from typing import Literal

from litestar import Controller, get
from msgspec import Struct

from billing.times import now_us
from gateway.admin.services import Injected, Rooms
from gateway.routing.breaker import State
from gateway.routing.routes import Route

Health = Literal["up", "starting", "saturated", "tripped", "probing"]


class RouteView(Struct, frozen=True, kw_only=True):
    model: str
    provider: str
    provider_model: str
    price_list: str
    weight: int
    strategy: str
    """The model's: in which order its routes are tried."""
    health: Health
    """`starting`: no address yet; `saturated`: at `max_parallel`; `tripped`: the circuit is open; `probing`: half open."""
    retry_in_ms: int
    """How long the circuit stays open; 0 while calls may go out."""
    in_flight: int
    keys_held: int
    """How many of our keys at the provider are left alone now, for they were refused, out of quota or limited."""
    first_content_ms: int | None
    """The decayed mean time to the first content of a stream; null where nothing is measured, or the strategy needs none."""
    priced: bool | None
    """Whether the price book covers it now; null while the catalog is not loaded."""


class RoutePage(Struct, frozen=True):
    data: list[RouteView]
    next_cursor: str | None = None


class RoutesController(Controller):
    path = "/routes"
    tags = ("routes",)

    @get(summary="Every route with its live health")
    async def index(self, rooms: Injected) -> RoutePage:
        now_s = time.monotonic()
        states = rooms.services.router.states(now_s)
        return RoutePage([_view(model, route, state, now_s, rooms) for model, route, state in states])


def _view(model: str, route: Route, state: State, now_s: float, rooms: Rooms) -> RouteView:
    mean_s = route.mean_pace_s
    return RouteView(
        model=model,
        provider=route.provider_name,
        provider_model=route.model,
        price_list=route.price_list,
        weight=route.settings.weight,
        strategy=rooms.services.router.find(model).settings.strategy,
        health=_health(route, state),
        retry_in_ms=round(route.breaker.opens_in_s(now_s) * 1000),
        in_flight=route.in_flight,
        keys_held=route.provider.keys_held(now_s),
        first_content_ms=None if mean_s is None else round(mean_s * 1000),
        priced=_priced(route, rooms),
    )


def _health(route: Route, state: State) -> Health:
    if route.provider.base_url is None:
        return "starting"
    if state is State.OPEN:
        return "tripped"
    if not route.provider.available:
        return "saturated"
    return "probing" if state is State.HALF_OPEN else "up"


def _priced(route: Route, rooms: Rooms) -> bool | None:
    catalog = rooms.services.catalog
    if not catalog.ready:
        return None
    snapshot = catalog.snapshot
    return snapshot.books.prices.covers(route.price_list, route.model, at_us=now_us(), version=snapshot.pins.book)
