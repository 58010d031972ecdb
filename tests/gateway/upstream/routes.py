"""A route of its own, without a router around it."""

from __future__ import annotations

from gateway.routing.provider import Provider
from gateway.routing.routes import Route
from gateway.settings import ModelSettings, RouteSettings


def route_to(provider: Provider, model: str) -> Route:
    settings = RouteSettings(provider=provider.name, model=model)
    owner = ModelSettings(name="named", routes=[settings])
    return Route(provider, provider.name, model, provider.price_list, settings, owner)
