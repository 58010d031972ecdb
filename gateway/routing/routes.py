"""The routes and models that callers may name, and what may serve one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw, Struct

from gateway.routing.breaker import ROUTES_OWN, Breaker
from gateway.routing.pace import Pace
from gateway.routing.provider import Provider
from gateway.routing.retries import RetryBudget
from gateway.settings import ModelSettings, RouteSettings

if TYPE_CHECKING:
    from gateway.upstream.base import Call


@dataclass(slots=True, eq=False)
class Route:
    """One way to serve a model. `model` is the provider's name for it, `of` the model that callers name; `paces` (of whole
    answers, of streams) are kept where something asks for them."""

    provider: Provider
    provider_name: str
    model: str
    price_list: str
    settings: RouteSettings
    of: ModelSettings
    breaker: Breaker = field(default_factory=Breaker)
    paces: tuple[Pace, Pace] | None = None
    in_flight: int = 0
    model_json: Raw = field(init=False)

    def __post_init__(self) -> None:
        self.model_json = Raw(msgspec.json.encode(self.model))

    def pace(self, streamed: bool) -> Pace | None:
        return None if self.paces is None else self.paces[streamed]

    @property
    def mean_pace_s(self) -> float | None:
        """Of streams; of whole answers where there was no stream yet."""
        whole, streamed = self.paces or (None, None)
        if streamed is not None and streamed.mean_s is not None:
            return streamed.mean_s
        return None if whole is None else whole.mean_s

    def usable(self, now_s: float, key: str = ROUTES_OWN) -> bool:
        return self.provider.available and self.breaker.allows(now_s, key)


@dataclass(slots=True, eq=False)
class Model:
    """A model that callers may name. `fallbacks`: every model that may serve in its place, in their order."""

    name: str
    settings: ModelSettings
    routes: tuple[Route, ...]
    fallbacks: tuple[str, ...] = ()
    retries: RetryBudget = field(default_factory=RetryBudget)


class Asker(Struct, frozen=True):
    """Who asks for what: what a plan depends on, beside the routes. `models`: those that the key may use; None: all."""

    key: str = ROUTES_OWN
    team_id: str = ""
    models: frozenset[str] | None = None
    call: Call | None = None


NOBODY: Final = Asker()


class Plan(Struct, frozen=True):
    """What may serve one request, best first: only routes that are worth a call now. `fallbacks` are the models behind them."""

    model: ModelSettings
    routes: list[Route]
    retries: RetryBudget
    fallbacks: list[str]
    asker: Asker
