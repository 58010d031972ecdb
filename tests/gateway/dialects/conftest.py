"""One gateway for a module, with a scripted provider of each kind behind it as a real process."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio

from gateway.routing.breaker import Breaker
from gateway.settings import load_settings
from tests.gateway.api.conftest import PROVIDER_KEY, Gateway, Provisioned, Upstream, environment, provisioned, running

__all__ = ["provisioned"]

CONFIG = """\
providers:
  openai: {{kind: openai, base_url: "http://127.0.0.1:{openai}/v1", api_key: "env:UP_KEY", price_as: up, idle_timeout_s: 1.0}}
  claude: {{kind: anthropic, base_url: "http://127.0.0.1:{anthropic}", api_key: "env:UP_KEY", price_as: up, idle_timeout_s: 1.0}}
  google: {{kind: gemini, base_url: "http://127.0.0.1:{gemini}", api_key: "env:UP_KEY", price_as: up, idle_timeout_s: 1.0}}
  motor: {{kind: engine, base_url: "http://127.0.0.1:{engine}", price_as: up}}
models:
  - {{name: on-openai, routes: [{{provider: openai, model: up-m}}]}}
  - {{name: on-claude, context_window: 8192, routes: [{{provider: claude, model: up-m}}]}}
  - {{name: on-google, routes: [{{provider: google, model: up-m}}]}}
  - {{name: on-motor, routes: [{{provider: motor, model: up-m}}]}}
  - {{name: claude-then-openai, routes: [{{provider: claude, model: up-m}}, {{provider: openai, model: up-m}}]}}
"""
KINDS = ("openai", "anthropic", "gemini", "engine")
MODELS = ("on-openai", "on-claude", "on-google")


@pytest.fixture(scope="module")
def upstreams() -> Iterator[dict[str, Upstream]]:
    started = {kind: Upstream(kind) for kind in KINDS}
    yield started
    for each in started.values():
        each.stop()


@dataclass
class World:
    """The gateway, the providers by kind, and the official clients, unchanged."""

    gateway: Gateway
    upstreams: dict[str, Upstream]
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    async def seen(self, model: str) -> dict[str, Any]:
        """The body of the last request that the model's provider got, its headers and its path."""
        kind = {"on-openai": "openai", "on-claude": "anthropic", "on-google": "gemini", "on-motor": "engine"}[model]
        entry = (await self.upstreams[kind].book())[-1]
        assert PROVIDER_KEY not in str(entry["body"])
        return entry

    async def row(self, headers: Any) -> dict[str, Any]:
        return await self.gateway.row(headers["x-request-id"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, provisioned: Provisioned, upstreams: dict[str, Upstream]
) -> AsyncIterator[World]:
    folder: Path = tmp_path_factory.mktemp("dialects")
    config, database = folder / "gateway.yaml", folder / "metergate.db"
    config.write_text(CONFIG.format(**{kind: each.port for kind, each in upstreams.items()}))
    shutil.copyfile(provisioned.database, database)
    async with running(load_settings(config, environment(folder, database))) as gateway:
        gateway.use(provisioned)
        base = f"http://127.0.0.1:{gateway.port}"
        async with (
            openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=provisioned.key, max_retries=0) as by_openai,
            anthropic.AsyncAnthropic(base_url=base, api_key=provisioned.key, max_retries=0) as by_anthropic,
        ):
            yield World(gateway, upstreams, by_openai, by_anthropic)


@pytest.fixture(autouse=True)
def fresh_breakers(world: World) -> None:
    """The module's providers fail on purpose; no test starts with the circuit that another opened."""
    for model in world.gateway.services.router.models():
        for route in model.routes:
            route.breaker = Breaker()
