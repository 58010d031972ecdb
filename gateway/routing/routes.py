"""Providers, routes and models at run time, and the router that plans a request's attempts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Raw

from gateway.errors import model_not_found, unavailable
from gateway.routing.breaker import ROUTES_OWN, Breaker, State
from gateway.routing.retries import RetryBudget
from gateway.settings import ModelSettings, ProviderSettings, RouteSettings, Settings
from gateway.upstream.anthropic import AnthropicAdapter
from gateway.upstream.base import Adapter
from gateway.upstream.engine import EngineAdapter
from gateway.upstream.gemini import GeminiAdapter
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.wire import Transport, transport_for

_VERSION: Final = re.compile(r"/v[0-9]+[a-z0-9]*$")

ADAPTERS: Final[Mapping[str, Adapter]] = {
    each.kind: each for each in (OpenAIAdapter(), EngineAdapter(), AnthropicAdapter(), GeminiAdapter())
}


class Provider:
    """One upstream. A bundled engine has no address until it is up: `connect` gives it one, `disconnect` takes it away."""

    def __init__(self, name: str, settings: ProviderSettings) -> None:
        self.name = name
        self.settings = settings
        self.adapter: Adapter = ADAPTERS[settings.kind]
        self.price_list = settings.price_as or name
        self.secret: str | None = None
        self.headers: dict[str, str] = {"content-type": "application/json", **self.adapter.fixed_headers}
        if settings.api_key is not None:
            self._present(settings.api_key.reveal())
        self.in_flight = 0
        self.base_url: str | None = None
        self._root = ""
        self._urls: dict[str, str] = {}
        self._transport: Transport | None = None
        if settings.base_url is not None:
            self.connect(settings.base_url)

    def _present(self, secret: str) -> None:
        self.secret = secret
        self.headers.update(self.adapter.credentials(secret))

    def connect(self, base_url: str, secret: str | None = None) -> None:
        """`base_url` up to and with the API's version, which may be left out where the adapter knows it.

        `secret` is what an engine of our own asks for.
        """
        if secret is not None:
            self._present(secret)
        root = base_url.rstrip("/")
        if self.adapter.root_suffix and not _VERSION.search(root):
            root += self.adapter.root_suffix
        self.base_url, self._root, self._urls = base_url, root, {}
        if self._transport is None:
            self._transport = transport_for(root, connect_timeout_s=self.settings.connect_timeout_s)

    def disconnect(self) -> None:
        self.base_url = None

    @property
    def transport(self) -> Transport:
        assert self._transport is not None, f"provider {self.name} has no address yet"
        return self._transport

    def url(self, path: str) -> str:
        """`path` is below the base URL: "/chat/completions"."""
        url = self._urls.get(path)
        if url is None:
            url = self._root + path
            if path.count("/") < 3:
                self._urls[path] = url
        return url

    @property
    def available(self) -> bool:
        most = self.settings.max_parallel
        return self.base_url is not None and (most is None or self.in_flight < most)

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()


@dataclass(slots=True, eq=False)
class Route:
    """One way to serve a model. `model` is the provider's name for it."""

    provider: Provider
    provider_name: str
    model: str
    price_list: str
    settings: RouteSettings
    breaker: Breaker = field(default_factory=Breaker)
    in_flight: int = 0
    model_json: Raw = field(init=False)

    def __post_init__(self) -> None:
        self.model_json = Raw(msgspec.json.encode(self.model))

    def usable(self, now_s: float, key: str = ROUTES_OWN) -> bool:
        return self.provider.available and self.breaker.allows(now_s, key)


Order = Callable[["Model", random.Random], list[Route]]


def by_priority(model: Model, jitter: random.Random) -> list[Route]:
    return list(model.routes)


def by_weight(model: Model, jitter: random.Random) -> list[Route]:
    """A weighted shuffle (Efraimidis and Spirakis 2006): the first is drawn by weight, the rest follow as fallbacks.

    A route of weight 0 is never drawn, only fallen back to.
    """
    keyed = [
        (jitter.random() ** (1.0 / route.settings.weight) if route.settings.weight else -1.0, -place, route)
        for place, route in enumerate(model.routes)
    ]
    return [route for _, _, route in sorted(keyed, key=lambda item: item[:2], reverse=True)]


STRATEGIES: Final[Mapping[str, Order]] = {"priority": by_priority, "weighted": by_weight}


@dataclass(slots=True, eq=False)
class Model:
    """A model that callers may name."""

    name: str
    settings: ModelSettings
    routes: tuple[Route, ...]
    retries: RetryBudget = field(default_factory=RetryBudget)


@dataclass(frozen=True, slots=True)
class Plan:
    """What may serve one request, best first: only routes that are worth a call now."""

    model: ModelSettings
    routes: list[Route]
    retries: RetryBudget


class Router:
    """Replaced as a whole on reload; running requests keep the routes they were planned with."""

    def __init__(self, settings: Settings, *, seed: int | None = None) -> None:
        self._jitter = random.Random(seed)
        self.providers: dict[str, Provider] = {name: Provider(name, each) for name, each in settings.providers.items()}
        self._models: dict[str, Model] = {}
        self._retired: list[Provider] = []
        self._build(settings)

    def _build(self, settings: Settings) -> None:
        old = {
            (route.provider_name, route.model): route.breaker
            for model in self._models.values()
            for route in model.routes
        }
        self._models = {
            each.name: Model(each.name, each, tuple(self._route(route, old) for route in each.routes))
            for each in settings.models
        }

    def _route(self, settings: RouteSettings, breakers: Mapping[tuple[str, str], Breaker]) -> Route:
        provider = self.providers[settings.provider]
        breaker = breakers.get((provider.name, settings.model)) or Breaker()
        return Route(provider, provider.name, settings.model, provider.price_list, settings, breaker)

    def reload(self, settings: Settings) -> None:
        """Take over providers and models. An unchanged provider keeps its connections, a running request its own."""
        for name, each in settings.providers.items():
            known = self.providers.get(name)
            if known is None or known.settings != each:
                fresh = Provider(name, each)
                if known is not None:
                    self._retired.append(known)
                    if each.base_url is None and known.base_url is not None:
                        fresh.connect(known.base_url, known.secret)
                self.providers[name] = fresh
        for name in [name for name in self.providers if name not in settings.providers]:
            self._retired.append(self.providers.pop(name))
        self._build(settings)

    def provider(self, name: str) -> Provider:
        return self.providers[name]

    def models(self) -> Iterable[Model]:
        return self._models.values()

    def find(self, name: str) -> Model:
        """Raises `ApiError` 404."""
        model = self._models.get(name)
        if model is None:
            raise model_not_found(name[:200])
        return model

    def plan(self, name: str, now_s: float = 0.0, key: str = ROUTES_OWN) -> Plan:
        """What may serve a request of `key`.

        Raises `ApiError`: 404 for an unknown model, 503 when no route is worth a call now.
        """
        model = self.find(name)
        routes = model.routes
        if len(routes) == 1:
            usable = [routes[0]] if routes[0].usable(now_s, key) else []
        else:
            usable = [
                route for route in STRATEGIES[model.settings.strategy](model, self._jitter) if route.usable(now_s, key)
            ]
        if not usable:
            raise _nothing_usable(model, now_s, key)
        return Plan(model.settings, usable, model.retries)

    def states(self, now_s: float) -> Iterator[tuple[str, Route, State]]:
        """Each route with its circuit's state, for metrics and operators."""
        for model in self._models.values():
            for route in model.routes:
                yield model.name, route, route.breaker.state(now_s)

    @property
    def jitter(self) -> random.Random:
        return self._jitter

    async def aclose(self) -> None:
        for provider in [*self.providers.values(), *self._retired]:
            await provider.aclose()
        self._retired.clear()


def _nothing_usable(model: Model, now_s: float, key: str) -> Exception:
    starting = all(route.provider.base_url is None for route in model.routes)
    waits = [route.breaker.opens_in_s(now_s, key) for route in model.routes if route.provider.base_url is not None]
    if starting:
        return unavailable(
            f"The model '{model.name}' is not up yet; try again shortly.", code="model_starting", retry_after_s=2.0
        )
    return unavailable(
        f"No provider of the model '{model.name}' can take a request now; try again later.",
        code="no_route_available",
        retry_after_s=max(1.0, min(waits, default=1.0)),
    )
