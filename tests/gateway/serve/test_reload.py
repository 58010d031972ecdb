"""Providers and models follow the file; a mistake in it changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.routing.router import Router
from gateway.serve.engines import Engines
from gateway.serve.reload import SettingsWatch
from gateway.settings import Settings, load_settings

ONE = """
providers:
  a: {kind: openai, base_url: "http://127.0.0.1:1/v1"}
models:
  - name: one
    routes: [{provider: a, model: one}]
"""
TWO = (
    ONE
    + """  - name: two
    routes: [{provider: a, model: two}]
"""
)


def watched(config: Path, tmp_path: Path) -> tuple[SettingsWatch, Router]:
    settings: Settings = load_settings(config, {})
    router = Router(settings)
    engines = Engines(tmp_path / "run", lambda line: None)

    async def take(fresh: Settings) -> None:
        router.reload(fresh)
        await engines.apply(fresh)

    return SettingsWatch(config, settings, take), router


def names(router: Router) -> list[str]:
    return [model.name for model in router.models()]


async def test_a_new_model_is_served_after_a_reload(tmp_path: Path) -> None:
    config = tmp_path / "metergate.yaml"
    config.write_text(ONE)
    watch, router = watched(config, tmp_path)
    provider = router.provider("a")
    assert names(router) == ["one"]
    config.write_text(TWO)
    await watch.reload()
    assert names(router) == ["one", "two"]
    assert router.provider("a") is provider
    await router.aclose()


async def test_a_file_with_a_mistake_changes_nothing_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "metergate.yaml"
    config.write_text(TWO)
    watch, router = watched(config, tmp_path)
    config.write_text(ONE.replace("provider: a", "provider: b"))
    with caplog.at_level(logging.ERROR):
        await watch.reload()
    assert names(router) == ["one", "two"]
    assert "there is no provider 'b'" in caplog.text
    await router.aclose()
