"""A LiteLLM proxy configuration, told as ours: what can be taken, and of everything else the place and the reason.

Nothing is called and no secret is repeated: a key that stands in the file in plain text becomes the name of an environment
variable, to be set by whoever moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import yaml

Json = dict[str, Any]

BASES: Final[Mapping[str, tuple[str, str | None]]] = {
    "openai": ("openai", "https://api.openai.com/v1"),
    "text-completion-openai": ("openai", "https://api.openai.com/v1"),
    "anthropic": ("anthropic", "https://api.anthropic.com"),
    "gemini": ("gemini", "https://generativelanguage.googleapis.com"),
    "deepseek": ("openai", "https://api.deepseek.com/v1"),
    "mistral": ("openai", "https://api.mistral.ai/v1"),
    "groq": ("openai", "https://api.groq.com/openai/v1"),
    "xai": ("openai", "https://api.x.ai/v1"),
    "together_ai": ("openai", "https://api.together.xyz/v1"),
    "fireworks_ai": ("openai", "https://api.fireworks.ai/inference/v1"),
    "openrouter": ("openai", "https://openrouter.ai/api/v1"),
    "perplexity": ("openai", "https://api.perplexity.ai"),
    "cerebras": ("openai", "https://api.cerebras.ai/v1"),
    "dashscope": ("openai", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    "moonshot": ("openai", "https://api.moonshot.ai/v1"),
    "ollama": ("openai", "http://localhost:11434/v1"),
    "ollama_chat": ("openai", "http://localhost:11434/v1"),
    "hosted_vllm": ("openai", None),
    "openai_like": ("openai", None),
    "custom_openai": ("openai", None),
    "lm_studio": ("openai", None),
    "litellm_proxy": ("openai", None),
    "azure": ("openai", None),
}
"""The prefix of a model's name there: our kind of provider, and its address where the prefix knows it."""
STRATEGIES: Final[Mapping[str, str]] = {
    "simple-shuffle": "weighted",
    "least-busy": "least_busy",
    "latency-based-routing": "fastest",
    "cost-based-routing": "cheapest",
}
PERIODS: Final[Mapping[str, str]] = {
    "1d": "day", "24h": "day", "daily": "day", "7d": "week", "1w": "week", "weekly": "week",
    "30d": "month", "1mo": "month", "monthly": "month",
}  # fmt: skip
PRICES: Final[Mapping[str, tuple[str, int]]] = {
    "input_cost_per_token": ("input", 1_000_000),
    "output_cost_per_token": ("output", 1_000_000),
    "cache_read_input_token_cost": ("cache_read", 1_000_000),
    "cache_creation_input_token_cost": ("cache_write_5m", 1_000_000),
}
_TAKEN: Final = frozenset(
    {
        "model",
        "api_base",
        "api_version",
        "base_url",
        "api_key",
        "rpm",
        "tpm",
        "weight",
        "order",
        "timeout",
        "max_parallel_requests",
        *PRICES,
    }
)
_OWN: Final = {"litellm_settings", "router_settings", "general_settings", "model_list", "environment_variables"}
_SETTINGS: Final = {
    "fallbacks", "context_window_fallbacks", "default_fallbacks", "routing_strategy", "model_group_alias", "master_key",
    "default_team_settings", "max_budget", "budget_duration", "database_url",
}  # fmt: skip


@dataclass
class Imported:
    """`settings` is our configuration; `prices`, `teams`, `budgets` are bodies of the admin API; `left` is what is not taken."""

    settings: Json = field(default_factory=lambda: {"providers": {}, "models": []})
    prices: list[Json] = field(default_factory=list)
    teams: list[Json] = field(default_factory=list)
    budgets: list[Json] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def yaml(self) -> str:
        return yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True, width=120)


class LiteLLMError(Exception):
    """The file is no LiteLLM proxy configuration; the message says where it is not."""


def read(path: Path) -> Imported:
    """Raises `LiteLLMError`."""
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LiteLLMError(f"{path}: it cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise LiteLLMError(f"{path}: it is not YAML: {' '.join(str(error).split())}") from error
    listed = config.get("model_list") if isinstance(config, dict) else None
    if not isinstance(listed, list):
        raise LiteLLMError(f"{path}: it has no `model_list`; is it the configuration of a LiteLLM proxy?")
    imported = Imported()
    sections = {
        name: _mapping(config.get(name)) for name in ("litellm_settings", "router_settings", "general_settings")
    }
    _Models(imported, _merged(sections)).take(listed)
    _accounts(imported, sections["litellm_settings"], sections["general_settings"])
    imported.left += [f"{name}: has no counterpart" for name in config if name not in _OWN]
    for section, values in sections.items():
        imported.left += [f"{section}.{name}: has no counterpart" for name in values if name not in _SETTINGS]
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
        if isinstance(given.get("weight"), int):
            route["weight"] = given["weight"]
        self._orders.setdefault(name, []).append((_count(given.get("order")) or 0, route))
        self._describe(self._models.setdefault(name, {"name": name}), info)
        self._prices(where, provider, model, {**info, **given})
        for other in given.keys() - _TAKEN:
            self._leave(f"{where}.litellm_params.{other}", "has no counterpart")

    def _describe(self, model: Json, info: Json) -> None:
        window = _count(info.get("max_input_tokens")) or _count(info.get("max_tokens"))
        most = _count(info.get("max_output_tokens"))
        if window is not None:
            model.setdefault("context_window", window)
        if most is not None and most <= model.get("context_window", most):
            model.setdefault("max_output_tokens", most)

    def _provider(self, where: str, prefix: str, given: Json) -> str | None:
        """The provider's name, made where it is new."""
        kind, base = BASES[prefix]
        base = str(given.get("api_base") or given.get("base_url") or base or "")
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
            if _count(given.get(theirs)) is not None:
                settings[ours] = given[theirs]
        if isinstance(given.get("timeout"), int | float) and given["timeout"] > 0:
            settings["timeout_s"] = float(given["timeout"])
        identity = tuple(sorted(settings.items()))
        name = self._providers.get(identity)
        if name is None:
            taken = self._imported.settings["providers"]
            name = next(each for each in _numbered(prefix.replace("_", "-")) if each not in taken)
            self._providers[identity] = name
            taken[name] = settings
        return name

    def _key(self, where: str, key: object) -> str | None:
        if not isinstance(key, str) or not key:
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
            body = {**price, "amount_per_mtok": amount}
            if body not in self._imported.prices:
                self._imported.prices.append(body)

    def _aliases(self) -> None:
        for alias, target in _mapping(self._settings.get("model_group_alias")).items():
            name = _mapping(target).get("model") or target
            if self._known(name) and str(alias) not in (*self._models, *self._named()):
                self._models[name].setdefault("aliases", []).append(str(alias))
            else:
                self._leave(
                    f"router_settings.model_group_alias.{alias}", "its model is not taken, or stands there already"
                )

    def _fallbacks(self) -> None:
        """Both kinds become one list: what is larger is chosen by the context window."""
        everyones = [name for name in _list(self._settings.get("default_fallbacks")) if self._known(name)]
        for kind in ("fallbacks", "context_window_fallbacks"):
            for each in _list(self._settings.get(kind)):
                for name, others in _mapping(each).items():
                    self._fall_back(f"{kind}.{name}", str(name), others)
        for name in self._models:
            if everyones and name not in everyones:
                self._fall_back("default_fallbacks", name, everyones)

    def _named(self) -> list[str]:
        return [alias for model in self._models.values() for alias in model.get("aliases", [])]

    def _known(self, name: object) -> bool:
        return isinstance(name, str) and name in self._models

    def _fall_back(self, where: str, name: str, others: object) -> None:
        model = self._models.get(name)
        for other in _list(others):
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
    for place, each in enumerate(_list(settings.get("default_team_settings"))):
        team = _mapping(each).get("team_id")
        if isinstance(team, str):
            imported.teams.append({"name": team, "settlement_currency": "USD"})
        others = [name for name in _mapping(each) if name != "team_id"]
        imported.left += [
            f"litellm_settings.default_team_settings[{place}].{name}: has no counterpart" for name in others
        ]
    if settings.get("max_budget") is not None:
        period = PERIODS.get(str(settings.get("budget_duration", "")), "total")
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


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _decimal(value: object, units: int) -> str | None:
    """`value` x `units` in plain digits, of at most six decimals; None where that is no price."""
    try:
        amount = Decimal(str(value)) * units
    except InvalidOperation:
        return None
    if not amount.is_finite() or amount < 0 or amount != round(amount, 6):
        return None
    return f"{amount.normalize():f}"
