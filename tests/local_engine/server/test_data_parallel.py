"""Several cores behind one server: the same answers, figures of all, prompts that begin alike on one, and no life without one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ..tiny import oracle_output
from .running import DEADLINE_S, RunningEngine, is_alive, wait_for

MODEL = "tiny-model"
STEP_S = 0.02


class Cores(RunningEngine):
    def cores(self) -> list[int]:
        pid = self.process.pid
        return [int(core) for core in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def engine(tiny_folder: Path, tmp_path: Path) -> Iterator[Cores]:
    with Cores(tiny_folder, tmp_path, parrot=False, step_s=STEP_S, engine={"data_parallel_size": 3}) as running:
        yield running


async def test_prompts_are_shared_out_and_answered_as_by_one_core(engine: Cores) -> None:
    assert len(engine.cores()) == 3
    assert engine.metric("metergate_engine_kv_blocks") == 3 * 64
    prompts = [[number, 2, 3] for number in range(12)]
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=DEADLINE_S) as client:
        bodies = [{"model": MODEL, "prompt": prompt, "max_tokens": 20, "n": 2, "temperature": 0} for prompt in prompts]
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        whole = await client.post("/v1/completions", json={**bodies[0], "prompt": prompts, "n": 1})
    expected = [bytes(oracle_output(prompt, 20)).decode(errors="replace") for prompt in prompts]
    texts = [[choice["text"] for choice in answer.json()["choices"]] for answer in answers]
    assert texts == [[text, text] for text in expected]
    assert [choice["text"] for choice in whole.json()["choices"]] == expected
    # A core makes at most one token of each of its sequences in a step: all at once took no more steps than one alone.
    assert engine.metric("metergate_engine_generated_tokens_total") == 12 * 2 * 20 + 12 * 20
    assert engine.metric("metergate_engine_steps_total") >= 2 * 3 * 20
    wait_for(lambda: engine.metric("metergate_engine_kv_blocks_free") == 3 * 64, "all pages to be free")


def test_prompts_that_begin_alike_find_what_one_core_has_kept(engine: Cores) -> None:
    with httpx.Client(base_url=engine.url, trust_env=False, timeout=DEADLINE_S) as client:

        def cached(prompt: str) -> int:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        found = [cached("a" * 96 + question * 20) for question in "xyz"]
        assert found == [0, 96, 96]
        assert client.post("/reset_prefix_cache").is_success
        assert cached("a" * 96 + "w" * 20) == 0


def test_one_core_that_dies_ends_the_engine_and_the_others(engine: Cores) -> None:
    cores = engine.cores()
    body = {"model": MODEL, "prompt": ["ab", "cd", "ef"], "max_tokens": 400, "stream": True}
    with (
        httpx.Client(base_url=engine.url, trust_env=False, timeout=DEADLINE_S) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        os.kill(cores[1], signal.SIGKILL)
        rest = list(lines)
    assert rest[-1].startswith('data: {"error":{"message":"The engine core died (signal 9')
    assert engine.process.wait(DEADLINE_S) == 3
    wait_for(lambda: not any(is_alive(core) for core in cores), "every core to end")
    assert "Traceback" not in engine.log
