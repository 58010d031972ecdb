"""Providers, models and their routes as the settings have them, and what no single value of them shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from billing.currencies import MINOR_DIGITS
from billing.errors import InvalidAmount
from billing.money import Money
from gateway.secret import Secret
from gateway.settings_source import Source

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=200)]

CACHE: Final = "cache"
"""The provider of a row whose answer was kept here."""


class ProviderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One upstream. Kind `engine` without `base_url` is the bundled engine, started as a supervised child with `engine_args`."""

    kind: Literal["engine", "openai", "anthropic", "gemini"]
    base_url: str | None = None
    api_key: Secret | None = None
    api_keys: list[Secret] = []
    """Several keys of ours at one provider: one that is refused, out of quota or limited gives way to the next."""
    api_version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]{1,40}$")] | None = None
    """Of Azure OpenAI's older address form (kind openai): the routes' models are then its deployments."""
    model: str | None = None
    """What a bundled engine loads: a folder, a .gguf file or a known name."""
    price_as: Name | None = None
    """The price list that prices this provider's models; by default the provider's own name."""
    connect_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 600.0
    """Until the answer's headers."""
    idle_timeout_s: Seconds = 120.0
    """Longest silence inside an answer."""
    drain_s: Annotated[float, Meta(ge=0, le=600)] = 0.0
    """After a caller left its stream: how long the rest is read for the provider's own count. 0 breaks it off."""
    max_parallel: Count | None = None
    requests_per_minute: Count | None = None
    """Of our own account there, all callers together; counted with the limits, so over all replicas where there is Redis."""
    tokens_per_minute: Count | None = None
    queue_s: Annotated[float, Meta(ge=0, le=60)] = 1.0
    """How long a request waits for its turn before another route is asked."""
    cost_per_hour: Annotated[str, Meta(pattern=r"^\d+(\.\d{1,9})? [A-Z]{3}$")] | None = None
    """What an hour of this engine costs us, such as "3.50 USD": a request then costs its share of the engine's time."""
    engine_args: list[str] = []
    share_prefix_cache: bool = False
    """Whether teams may be served from each other's cached prefixes on an engine. Faster, and it tells who asked what."""

    def hourly_cost(self) -> Money | None:
        """`cost_per_hour` as money. Raises `InvalidAmount` for one that 64 bits cannot hold."""
        if self.cost_per_hour is None:
            return None
        amount, _, currency = self.cost_per_hour.partition(" ")
        return Money.parse(amount, currency)


class RouteSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to serve a model: the provider and the provider's own name for the model."""

    provider: str
    model: Annotated[str, Meta(min_length=1, max_length=400)]
    weight: Annotated[int, Meta(ge=0)] = 1


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model that callers may name, with its routes in order of preference."""

    name: Name
    routes: Annotated[list[RouteSettings], Meta(min_length=1)]
    aliases: list[Name] = []
    """Other names that callers may use. Access lists, rows and prices know the model by its own."""
    context_window: Count | None = None
    max_output_tokens: Count | None = None
    prompt_overhead: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Tokens that the provider's chat template adds to every prompt by itself (a default system prompt), reserved as well."""
    tokenizer: str | None = None
    """A tokenizer.json or .tiktoken file: counts what a provider leaves uncounted. Never downloaded."""
    fallbacks: list[str] = []
    """Models whose routes are tried, in this order, when none of this one's own answers, each followed by its own fallbacks. A
    prompt that does not fit goes to those with a larger context window."""
    hedge: bool = False
    """Whether a second route is asked as well when the first has not begun within the time of 95 % of its last answers."""
    cache: Literal["team", "shared"] | None = None
    """Whether an answer is kept and given again to the same request, of the same team or of any. Settings of all: `cache`."""
    strategy: Literal["priority", "weighted", "cheapest", "fastest", "least_busy", "prefix_affinity"] = "priority"


def check_routing(providers: Mapping[str, ProviderSettings], models: Sequence[ModelSettings], source: Source) -> None:
    """Raises `SettingsError` for addresses and names that cannot be used, and for fallbacks that lead back."""
    for name, provider in providers.items():
        _check_provider(name, provider, source)
    _check_models(providers, models, source)
    _check_fallbacks(models, source)


def fallbacks_of(name: str, models: Mapping[str, ModelSettings]) -> Iterator[str]:
    """Every model that may serve in the place of `name`, each once: its own fallbacks, each followed by that one's."""
    seen = {name}

    def following(of: str) -> Iterator[str]:
        for other in models[of].fallbacks:
            if other not in seen:
                seen.add(other)
                yield other
                yield from following(other)

    return following(name)


def _check_provider(name: str, provider: ProviderSettings, source: Source) -> None:
    path = ("providers", name)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise source.error(path, "a provider's name has letters, digits, dots, dashes and underscores")
    if name == CACHE:
        raise source.error(path, f"{CACHE!r} is what usage rows call answers out of the cache; take another name")
    if provider.cost_per_hour is not None:
        _check_hourly_cost(provider, source, (*path, "cost_per_hour"))
    if provider.api_key is not None and provider.api_keys:
        raise source.error((*path, "api_keys"), "stands beside `api_key`; list every key in api_keys")
    if provider.base_url is not None:
        parts = urlsplit(provider.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise source.error((*path, "base_url"), "must be an http:// or https:// address")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise source.error((*path, "base_url"), "must have no user, query or fragment; a key goes into api_key")
    elif provider.kind != "engine":
        raise source.error(path, f"lacks `base_url`, which a provider of kind {provider.kind} needs")
    elif provider.model is None:
        raise source.error(
            path, "lacks `model` (the bundled engine's) or `base_url` (of an engine that runs elsewhere)"
        )
    if provider.api_version is not None and provider.kind != "openai":
        raise source.error((*path, "api_version"), "applies only to Azure OpenAI (kind openai)")
    if provider.engine_args and (provider.kind != "engine" or provider.base_url is not None):
        raise source.error((*path, "engine_args"), "applies only to the bundled engine (kind engine, no base_url)")


def _check_hourly_cost(provider: ProviderSettings, source: Source, path: tuple[str, ...]) -> None:
    assert provider.cost_per_hour is not None
    if provider.kind != "engine":
        raise source.error(path, "applies only to engines (kind engine); what an upstream costs is a price in the book")
    if provider.cost_per_hour[-3:] not in MINOR_DIGITS:
        raise source.error(path, f"{provider.cost_per_hour[-3:]} is no ISO 4217 currency code")
    try:
        provider.hourly_cost()
    except InvalidAmount as error:
        raise source.error(path, str(error)) from error


def _check_models(providers: Mapping[str, ProviderSettings], models: Sequence[ModelSettings], source: Source) -> None:
    seen: set[str] = set()
    for index, model in enumerate(models):
        path = ("models", index)
        for place, name in ((("name",), model.name), *((("aliases", i), name) for i, name in enumerate(model.aliases))):
            if name in seen:
                raise source.error(
                    (*path, *place), f"the model {name!r} is listed twice; put all routes into one entry"
                )
            seen.add(name)
        if model.context_window and model.max_output_tokens and model.max_output_tokens > model.context_window:
            raise source.error((*path, "max_output_tokens"), f"exceeds the context_window of {model.context_window}")
        if model.tokenizer is not None and not Path(model.tokenizer).is_file():
            raise source.error(
                (*path, "tokenizer"), f"{model.tokenizer!r} is no file; name a tokenizer.json or .tiktoken file"
            )
        for number, route in enumerate(model.routes):
            if route.provider not in providers:
                known = ", ".join(providers) or "none"
                message = f"there is no provider {route.provider!r}; configured: {known}"
                raise source.error((*path, "routes", number, "provider"), message)


def _check_fallbacks(models: Sequence[ModelSettings], source: Source) -> None:
    by_name = {model.name: model for model in models}
    for index, model in enumerate(models):
        for number, name in enumerate(model.fallbacks):
            if name not in by_name:
                known = ", ".join(by_name)
                raise source.error(
                    ("models", index, "fallbacks", number), f"there is no model {name!r}; listed: {known}"
                )
    for index, model in enumerate(models):
        for number, name in enumerate(model.fallbacks):
            if model.name in (name, *fallbacks_of(name, by_name)):
                message = f"falls back to {name!r}, which leads back to {model.name!r}; take one of them out"
                raise source.error(("models", index, "fallbacks", number), message)
