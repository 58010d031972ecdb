"""A LiteLLM proxy configuration, told as ours: what can be taken, and of everything else the place and the reason.

Nothing is called and no secret is repeated: a key that stands in the file in plain text becomes the name of an environment
variable, to be set by whoever moves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from gateway.litellm_check import as_yaml, refusal, without_what_is_refused
from gateway.litellm_file import LiteLLMError, load
from gateway.litellm_names import BASES, MOST, NAME, OWN, PERIODS, PRICES, SETTINGS, STRATEGIES, TAKEN

Json = dict[str, Any]


@dataclass
class Imported:
    """`settings` is our configuration; `prices`, `teams`, `budgets` are bodies of the admin API; `left` is what is not taken."""

    settings: Json = field(default_factory=lambda: {"providers": {}, "models": []})
    prices: list[Json] = field(default_factory=list)
    teams: list[Json] = field(default_factory=list)
    budgets: list[Json] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def yaml(self) -> str:
        return as_yaml(self.settings)


def read(path: Path) -> Imported:
    """Raises `LiteLLMError`."""
    config = load(path)
    listed = config.get("model_list") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(listed, list):
        raise LiteLLMError(f"{path}: it has no `model_list`; is it the configuration of a LiteLLM proxy?")
    imported = Imported()
    sections = {
        name: _mapping(config.get(name)) for name in ("litellm_settings", "router_settings", "general_settings")
    }
    _Models(imported, _merged(sections)).take(listed)
    _accounts(imported, sections["litellm_settings"], sections["general_settings"])
    imported.settings, refused = without_what_is_refused(imported.settings)
    imported.left += refused
    imported.prices = [each for each in imported.prices if each["provider"] in imported.settings["providers"]]
    why = refusal(imported.settings) if refused else None
    if why is not None:
        raise LiteLLMError(f"{path}: what would be written is no configuration of ours: {why}")
    imported.left += [f"{name}: has no counterpart" for name in config if name not in OWN]
    imported.left += [f"{name}: is no mapping" for name in sections if not isinstance(config.get(name) or {}, dict)]
    if config.get("environment_variables"):
        imported.left.append("environment_variables: set them where the gateway runs")
    for section, values in sections.items():
        imported.left += [f"{section}.{name}: has no counterpart" for name in values if name not in SETTINGS]
    return imported


def _merged(sections: Mapping[str, Json]) -> Json:
    return {**sections["litellm_settings"], **sections["router_settings"]}


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


class _Models:
    """Deployments of one name become the routes of one model; deployments of one address and key share a provider."""

    def __init__(self, imported: Imported, settings: Json) -> None:
        self._imported = imported
        self._settings = settings
        self._providers: dict[tuple[object, ...], str] = {}
        self._models: dict[str, Json] = {}
        self._orders: dict[str, list[tuple[int, Json]]] = {}
        self._plain_keys: dict[str, str] = {}
        self._amounts: dict[tuple[str, str, str], str] = {}

    def take(self, listed: Sequence[object]) -> None:
        for place, entry in enumerate(listed):
            self._deployment(f"model_list[{place}]", _mapping(entry))
        strategy = str(self._settings.get("routing_strategy", "simple-shuffle"))
        if strategy not in STRATEGIES:
            self._leave("router_settings.routing_strategy", f"{strategy} has no counterpart; `weighted` is used")
        for name, model in self._models.items():
            ordered = self._orders[name]
            if any(order for order, _ in ordered):
                model["strategy"] = "priority"
                ordered = sorted(ordered, key=lambda each: each[0])
            elif len(ordered) > 1:
                model["strategy"] = STRATEGIES.get(strategy, "weighted")
            model["routes"] = [route for _, route in ordered]
        self._aliases()
        self._fallbacks()
        self._imported.settings["models"] = list(self._models.values())

    def _leave(self, where: str, why: str) -> None:
        self._imported.left.append(f"{where}: {why}")

    def _deployment(self, where: str, entry: Json) -> None:
        name, given, info = (
            entry.get("model_name"),
            _mapping(entry.get("litellm_params")),
            _mapping(entry.get("model_info")),
        )
        called = given.get("model")
        if not isinstance(name, str) or not isinstance(called, str) or not called:
            self._leave(where, "has no model_name with a litellm_params.model")
            return
        if "*" in name or "*" in called:
            self._leave(where, f"{name!r} is a wildcard; list the models that callers may name")
            return
        prefix, slash, model = called.partition("/")
        if not slash:
            prefix, model = "anthropic" if called.startswith("claude") else "openai", called
        if prefix not in BASES:
            self._leave(where, f"{called!r}: providers of the kind {prefix!r} are not spoken to here")
            return
        provider = self._provider(where, prefix, given)
        if provider is None:
            return
        route: Json = {"provider": provider, "model": model}
        weight, order = (self._number(f"{where}.litellm_params", given, each) for each in ("weight", "order"))
        if weight is not None:
            route["weight"] = weight
        self._orders.setdefault(name, []).append((order or 0, route))
        self._describe(f"{where}.model_info", self._models.setdefault(name, {"name": name}), info)
        self._prices(where, provider, model, {**info, **given})
        if not isinstance(entry.get("model_info") or {}, dict):
            self._leave(f"{where}.model_info", "is no mapping")
        for other in sorted(given.keys() - TAKEN, key=str):
            self._leave(f"{where}.litellm_params.{other}", "has no counterpart")

    def _number(self, where: str, given: Json, name: str, least: int = 0) -> int | None:
        value = given.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST:
            return value
        if value is not None:
            self._leave(f"{where}.{name}", f"is no whole number from {least} on that can be meant")
        return None

    def _describe(self, where: str, model: Json, info: Json) -> None:
        window = self._number(where, info, "max_input_tokens", 1) or self._number(where, info, "max_tokens", 1)
        most = self._number(where, info, "max_output_tokens", 1)
        if window is not None:
            model.setdefault("context_window", window)
        if most is not None and most > model.get("context_window", most):
            self._leave(f"{where}.max_output_tokens", "is more than the context window")
        elif most is not None:
            model.setdefault("max_output_tokens", most)

    def _provider(self, where: str, prefix: str, given: Json) -> str | None:
        """The provider's name, made where it is new."""
        kind, base = BASES[prefix]
        base = given.get("api_base") or given.get("base_url") or base or ""
        if not isinstance(base, str):
            self._leave(where, "its api_base is no text")
            return None
        if base.startswith("os.environ/"):
            self._leave(where, "its api_base is an environment variable; write the address out")
            return None
        if not base:
            self._leave(where, f"a deployment of {prefix!r} needs an api_base")
            return None
        if prefix == "azure" and "/openai/v1" not in base and not given.get("api_version"):
            base = base.rstrip("/") + "/openai/v1"
        settings: Json = {"kind": kind, "base_url": base.rstrip("/")}
        if prefix == "azure" and given.get("api_version"):
            settings["api_version"] = str(given["api_version"])
            if settings["api_version"].startswith("os.environ/"):
                self._leave(where, "its api_version is an environment variable; write the version out")
                return None
        key = self._key(where, given.get("api_key"))
        if key is not None:
            settings["api_key"] = key
        for theirs, ours in (
            ("rpm", "requests_per_minute"),
            ("tpm", "tokens_per_minute"),
            ("max_parallel_requests", "max_parallel"),
        ):
            number = self._number(f"{where}.litellm_params", given, theirs, 1)
            if number is not None:
                settings[ours] = number
        timeout = given.get("timeout")
        if isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < MOST:
            settings["timeout_s"] = float(timeout)
        elif timeout is not None:
            self._leave(f"{where}.litellm_params.timeout", "is no number of seconds")
        identity = tuple(sorted(settings.items()))
        name = self._providers.get(identity)
        if name is None:
            taken = self._imported.settings["providers"]
            name = next(each for each in _numbered(prefix.replace("_", "-")) if each not in taken)
            self._providers[identity] = name
            taken[name] = settings
        return name

    def _key(self, where: str, key: object) -> str | None:
        if key is None:
            return None
        if not isinstance(key, str) or not key:
            self._leave(f"{where}.litellm_params.api_key", "is no text; write `api_key: env:NAME` beside its provider")
            return None
        if key.startswith("os.environ/"):
            return f"env:{key.removeprefix('os.environ/')}"
        variable = self._plain_keys.setdefault(key, f"IMPORTED_KEY_{len(self._plain_keys) + 1}")
        self._leave(
            f"{where}.litellm_params.api_key", f"stands in plain text; set the environment variable {variable} to it"
        )
        return f"env:{variable}"

    def _prices(self, where: str, provider: str, model: str, given: Json) -> None:
        for name, (token_class, units) in PRICES.items():
            if given.get(name) is None:
                continue
            amount = _decimal(given[name], units)
            if amount is None:
                self._leave(f"{where}.{name}", "is no price of at most six decimals per million tokens")
                continue
            price = {"provider": provider, "model": model, "token_class": token_class, "currency": "USD"}
            standing = self._amounts.setdefault((provider, model, token_class), amount)
            if standing != amount:
                self._leave(
                    f"{where}.{name}", f"{provider} asks {standing} for {model} elsewhere in the file, which is taken"
                )
            elif (body := {**price, "amount_per_mtok": amount}) not in self._imported.prices:
                self._imported.prices.append(body)

    def _aliases(self) -> None:
        where = "router_settings.model_group_alias"
        if not isinstance(self._settings.get("model_group_alias") or {}, dict):
            self._leave(where, "is no mapping")
        aliases: Mapping[Any, Any] = _mapping(self._settings.get("model_group_alias"))
        for alias, target in aliases.items():
            name = _mapping(target).get("model") or target
            if not isinstance(alias, str) or re.fullmatch(NAME, alias) is None:
                self._leave(f"{where}.{alias}", "is no name that a caller can send here")
            elif self._known(name) and alias not in (*self._models, *self._named()):
                self._models[name].setdefault("aliases", []).append(alias)
            else:
                self._leave(f"{where}.{alias}", "its model is not taken, or stands there already")

    def _fallbacks(self) -> None:
        """Both kinds become one list: what is larger is chosen by the context window."""
        for name in self._listed("default_fallbacks", self._settings.get("default_fallbacks")):
            if not self._known(name):
                self._leave("default_fallbacks", f"{name!r} is not among the models that are taken")
        everyones = [name for name in _list(self._settings.get("default_fallbacks")) if self._known(name)]
        for kind in ("fallbacks", "context_window_fallbacks"):
            for place, each in enumerate(self._listed(kind, self._settings.get(kind))):
                if not isinstance(each, dict):
                    self._leave(f"{kind}[{place}]", "is no mapping of a model to others")
                for name, others in _mapping(each).items():
                    self._fall_back(f"{kind}.{name}", str(name), others)
        for name in self._models:
            if everyones and name not in everyones:
                self._fall_back("default_fallbacks", name, everyones)

    def _listed(self, where: str, value: object) -> list[Any]:
        if value is not None and not isinstance(value, list):
            self._leave(where, "is no list")
        return _list(value)

    def _named(self) -> list[str]:
        return [alias for model in self._models.values() for alias in model.get("aliases", [])]

    def _known(self, name: object) -> bool:
        return isinstance(name, str) and name in self._models

    def _fall_back(self, where: str, name: str, others: object) -> None:
        model = self._models.get(name)
        for other in self._listed(where, others):
            if model is None or not self._known(other):
                self._leave(where, f"{name!r} or {other!r} is not among the models that are taken")
            elif name == other or name in self._reached(str(other)):
                self._leave(where, f"{other!r} leads back to {name!r}")
            elif other not in model.setdefault("fallbacks", []):
                model["fallbacks"].append(other)

    def _reached(self, name: str) -> set[str]:
        found, waiting = set[str](), [name]
        while waiting:
            for other in self._models[waiting.pop()].get("fallbacks", []):
                if other not in found:
                    found.add(other)
                    waiting.append(other)
        return found


def _accounts(imported: Imported, settings: Json, general: Json) -> None:
    if not isinstance(settings.get("default_team_settings") or [], list):
        imported.left.append("litellm_settings.default_team_settings: is no list")
    for place, each in enumerate(_list(settings.get("default_team_settings"))):
        team = _mapping(each).get("team_id")
        if not isinstance(team, str):
            imported.left.append(f"litellm_settings.default_team_settings[{place}]: has no team_id")
        elif any(known["name"] == team for known in imported.teams):
            imported.left.append(
                f"litellm_settings.default_team_settings[{place}].team_id: {team!r} stands there already"
            )
        else:
            imported.teams.append({"name": team, "settlement_currency": "USD"})
        others = [name for name in _mapping(each) if name != "team_id"]
        imported.left += [
            f"litellm_settings.default_team_settings[{place}].{name}: has no counterpart" for name in others
        ]
    if settings.get("max_budget") is not None:
        duration = settings.get("budget_duration")
        period = PERIODS.get(str(duration), "total")
        if duration is not None and str(duration) not in PERIODS:
            imported.left.append(
                f"litellm_settings.budget_duration: {duration} has no counterpart; the budget never starts anew"
            )
        amount = _decimal(settings["max_budget"], 1)
        if amount is None:
            imported.left.append("litellm_settings.max_budget: is no amount")
        else:
            budget = {
                "scope": "all",
                "amount": amount,
                "currency": "USD",
                "period": period,
                "timezone": "UTC",
                "hard": True,
            }
            imported.budgets.append(budget)
    if "master_key" in general:
        imported.left.append(
            "general_settings.master_key: the admin key here is METERGATE_ADMIN_KEY, or made at the first start"
        )
    if "database_url" in general:
        imported.left.append(
            "general_settings.database_url: keys stay behind. LiteLLM keeps a plain SHA-256 of each, this gateway a keyed hash of"
            " the whole key, and neither can be made into the other: make new keys, and tags with the old names"
        )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _decimal(value: object, units: int) -> str | None:
    """`value` x `units` in plain digits, of at most six decimals; None where that is no price."""
    try:
        amount = Decimal(str(value)) * units
    except (ArithmeticError, ValueError):
        return None
    if not amount.is_finite() or not 0 <= amount < MOST or amount != round(amount, 6):
        return None
    return f"{amount.normalize():f}"
