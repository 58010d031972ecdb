"""Law: an engine that dies under its gateway, or with it, loses no request and answers none twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.database import upgrade
from tests.faults.callers import Wish
from tests.faults.engine_stage import EngineStage, violations
from tests.gateway.metering.conftest import eventually
from tests.local_engine.models.tiny_llama import save_tiny_llama
from tests.local_engine.tiny import VOCAB, write_model_folder

TOKENS = 1500
RESTART_S = 150.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of bytes, then weights and what they say of themselves."""
    folder = write_model_folder(tmp_path_factory.mktemp("tiny") / "tiny")
    save_tiny_llama(folder, vocab_size=VOCAB, max_position_embeddings=2048)
    return folder


@pytest.fixture(scope="module")
def stage(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineStage]:
    home = tmp_path_factory.mktemp("engine-faults") / "home"
    home.mkdir()
    url = f"sqlite:///{home / 'metergate.db'}"
    asyncio.run(upgrade(url))
    stage = EngineStage(home, url, model)
    try:
        stage.open()
        yield stage
        stage.gateway.stop()
    finally:
        stage.gateway.kill_group()


async def under_traffic(stage: EngineStage, victim: int) -> None:
    """SIGKILL for the victim while answers are being made, streams and whole ones."""

    async def kill() -> None:
        streams = stage.callers.heard[-4::2]
        async with asyncio.timeout(RESTART_S):
            while not all(heard.events > 5 for heard in streams):
                await asyncio.sleep(0.005)
        await asyncio.sleep(stage.dice.uniform(0.0, 0.1))
        os.kill(victim, signal.SIGKILL)

    asks = [asyncio.create_task(stage.callers.ask(Wish(1, TOKENS, at % 2 == 0))) for at in range(4)]
    await asyncio.sleep(0)
    await asyncio.gather(*asks, kill())


def answers(stage: EngineStage) -> bool:
    return asyncio.run(stage.callers.ask(Wish(1, 3, True))).complete


def lawful(stage: EngineStage) -> None:
    found = ["not looked at"]

    def holds() -> bool:
        found[:] = violations(stage)
        return not found

    try:
        eventually(holds, "the law", 40.0)
    except pytest.fail.Exception:
        pytest.fail("\n".join([*found[:20], stage.gateway.log()]))


@pytest.mark.parametrize("part", [0, 1], ids=["engine", "core"])
def test_the_engine_is_killed_in_the_middle_of_its_answers(stage: EngineStage, part: int) -> None:
    eventually(lambda: answers(stage), "the engine answers", RESTART_S)
    before = len(stage.callers.heard)
    asyncio.run(under_traffic(stage, stage.engine()[part]))
    assert not any(heard.complete for heard in stage.callers.heard[before:]), "it died in the middle of all of them"
    eventually(lambda: answers(stage), "the engine comes back by itself", RESTART_S)
    lawful(stage)


def test_the_engine_does_not_outlive_a_gateway_that_is_killed_in_the_middle_of_an_answer(stage: EngineStage) -> None:
    eventually(lambda: answers(stage), "the engine answers", RESTART_S)
    engine = stage.engine()
    assert len(engine) == 2
    asyncio.run(under_traffic(stage, stage.gateway.pid))
    stage.gateway.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engine), "the engine ends with it")
    stage.gateway.start()
    stage.gateway.wait_ready()
    eventually(lambda: answers(stage), "a new engine answers", RESTART_S)
    lawful(stage)
    assert stage.database.count("usage", "status = 'lost'") >= 1
