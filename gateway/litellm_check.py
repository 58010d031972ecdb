"""What an import writes is what our own reader of settings takes: whatever it refuses is left out, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from gateway.settings import load_settings
from gateway.settings_source import SettingsError

Json = dict[str, Any]


def refusal(settings: Json) -> str | None:
    """What our reader says against these settings, without the place; None where it takes them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(as_yaml(settings), "utf-8")
        try:
            load_settings(path, _environ(settings))
        except SettingsError as error:
            return str(error).removeprefix(str(path)).lstrip(":0123456789 ")
    return None


def as_yaml(settings: Mapping[str, object]) -> str:
    text: str = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)
    return text


def without_what_is_refused(settings: Json) -> tuple[Json, list[str]]:
    """The settings less the models that our reader refuses, each looked at alone; and why."""
    if refusal(settings) is None:
        return settings, []
    left, kept = [], []
    for model in settings["models"]:
        alone = {name: value for name, value in model.items() if name != "fallbacks"}
        why = refusal({"providers": _used(settings, [model]), "models": [alone]})
        if why is None:
            kept.append(model)
        else:
            left.append(f"{model['name']}: {why}")
    names = {model["name"] for model in kept}
    for model in kept:
        others = [name for name in model.pop("fallbacks", []) if name in names]
        model |= {"fallbacks": others} if others else {}
    return {"providers": _used(settings, kept), "models": kept}, left


def _used(settings: Json, models: list[Json]) -> Json:
    used = {route["provider"] for model in models for route in model["routes"]}
    return {name: each for name, each in settings["providers"].items() if name in used}


def _environ(settings: Json) -> dict[str, str]:
    """Something in every variable that a key is to come from: whoever moves sets it later."""
    keys = [str(each.get("api_key", "")) for each in settings["providers"].values()]
    return {key.removeprefix("env:"): "set later" for key in keys if key.startswith("env:")}
