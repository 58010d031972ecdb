"""The router: it plans a request's attempts, best first, and takes over providers and models on a reload."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping

from gateway.errors import model_not_found, unavailable
from gateway.routing.breaker import Breaker, State
from gateway.routing.costs import CatalogView, Costs
from gateway.routing.pace import Pace
from gateway.routing.provider import Provider
from gateway.routing.routes import NOBODY, Asker, Model, Plan, Route
from gateway.routing.strategies import STRATEGIES, Asked
from gateway.settings import ModelSettings, RouteSettings, Settings
from gateway.settings_routing import fallbacks_of


class Router:
    """Replaced as a whole on reload; running requests keep the routes they were planned with."""

    def __init__(self, settings: Settings, *, catalog: CatalogView | None = None, seed: int | None = None) -> None:
        """`catalog`: where prices are, for the strategy that asks for them."""
        self._jitter = random.Random(seed)
        self._costs = Costs(catalog)
        self.providers: dict[str, Provider] = {name: Provider(name, each) for name, each in settings.providers.items()}
        self._models: dict[str, Model] = {}
        self._aliases: dict[str, str] = {}
        self._default: str | None = None
        self._retired: list[Provider] = []
        self._build(settings)

    def _build(self, settings: Settings) -> None:
        old = {(route.provider_name, route.model): route for model in self._models.values() for route in model.routes}
        named = {each.name: each for each in settings.models}
        self._aliases = {alias: each.name for each in settings.models for alias in each.aliases}
        self._default = settings.default_model
        self._models = {
            each.name: Model(
                each.name,
                each,
                tuple(self._route(each, route, old) for route in each.routes),
                tuple(fallbacks_of(each.name, named)),
            )
            for each in settings.models
        }

    def _route(self, model: ModelSettings, settings: RouteSettings, old: Mapping[tuple[str, str], Route]) -> Route:
        provider = self.providers[settings.provider]
        known = old.get((provider.name, settings.model))
        breaker = Breaker() if known is None else known.breaker
        paces = None
        if model.strategy == "fastest" or model.hedge:
            paces = (Pace(), Pace()) if known is None or known.paces is None else known.paces
        return Route(provider, provider.name, settings.model, provider.price_list, settings, model, breaker, paces)

    def reload(self, settings: Settings) -> None:
        """Take over providers and models. An unchanged provider keeps its connections, a running request its own."""
        for name, each in settings.providers.items():
            known = self.providers.get(name)
            if known is None or known.settings != each:
                fresh = Provider(name, each)
                if known is not None:
                    self._retired.append(known)
                    if each.base_url is None and known.base_url is not None:
                        fresh.connect(known.base_url, known.credential.secret)
                self.providers[name] = fresh
        for name in [name for name in self.providers if name not in settings.providers]:
            self._retired.append(self.providers.pop(name))
        self._build(settings)

    def follow(self, name: str, base_url: str | None, secret: str) -> None:
        """An engine of ours is up at `base_url`, asking for `secret`, or gone."""
        provider = self.providers.get(name)
        if provider is None:
            return
        if base_url is None:
            provider.disconnect()
        else:
            provider.connect(base_url, secret)

    def provider(self, name: str) -> Provider:
        return self.providers[name]

    def models(self) -> Iterable[Model]:
        return self._models.values()

    def find(self, name: str) -> Model:
        """By its name or an alias. Raises `ApiError` 404."""
        model = self._models.get(name) or self._models.get(self._aliases.get(name, ""))
        if model is None:
            raise model_not_found(name[:200])
        return model

    def serving(self, name: str) -> Model:
        """What serves a request for `name`: the model of that name, or the default where there is none. Raises `ApiError` 404."""
        if self._default is not None and name not in self._models and name not in self._aliases:
            return self._models[self._default]
        return self.find(name)

    def plan(self, name: str, now_s: float = 0.0, asker: Asker = NOBODY) -> Plan:
        """What may serve a request; where the model itself has no route now, those of its first fallback that has.

        Raises `ApiError`: 404 for an unknown model, 503 when no route is worth a call now.
        """
        model = self.find(name)
        plan = Plan(model.settings, self._usable(model, now_s, asker), model.retries, list(model.fallbacks), asker)
        if not plan.routes and not self.fall_back(plan, now_s):
            raise _nothing_usable(model, now_s, asker.key)
        return plan

    def fall_back(self, plan: Plan, now_s: float, *, beyond: int | None = None) -> list[Route]:
        """Adds to the plan the routes of the next fallback that the key may use and that has one now, and returns them.

        `beyond`: only of a model whose context window is known to be larger.
        """
        for name in tuple(plan.fallbacks):
            model = self._models.get(name)
            if model is None or (plan.asker.models is not None and name not in plan.asker.models):
                continue
            if beyond is not None and (model.settings.context_window or 0) <= beyond:
                continue
            plan.fallbacks.remove(name)
            routes = self._usable(model, now_s, plan.asker)
            if routes:
                plan.routes.extend(routes)
                return routes
        return []

    def _usable(self, model: Model, now_s: float, asker: Asker) -> list[Route]:
        routes = model.routes
        if len(routes) == 1:
            return [routes[0]] if routes[0].usable(now_s, asker.key) else []
        asked = Asked(now_s, self._jitter, self._costs, asker.call, asker.team_id)
        ordered = STRATEGIES[model.settings.strategy](model, asked)
        return [route for route in ordered if route.usable(now_s, asker.key)]

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
