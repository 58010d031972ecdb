from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from .running import RunningEngine


@pytest.fixture(scope="module")
def parrot(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """An engine that repeats the prompt, token by token."""
    with RunningEngine(tiny_folder, tmp_path_factory.mktemp("parrot")) as running:
        yield running


@pytest.fixture
async def client(parrot: RunningEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=parrot.url, trust_env=False, verify=False, timeout=30) as client:
        yield client


@pytest.fixture
async def sdk(parrot: RunningEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False, timeout=30)
    async with openai.AsyncOpenAI(base_url=f"{parrot.url}/v1", api_key="none", http_client=http, max_retries=0) as sdk:
        yield sdk
