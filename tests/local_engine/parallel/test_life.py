"""An engine of two ranks behind its server: one that dies or stands still is named, nobody waits, nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from local_engine.config import EngineConfig
from local_engine.errors import RanksLost
from local_engine.parallel.crew import Crew
from local_engine.parallel.group import Group
from local_engine.parallel.shard import Shard

from ..models.test_families import save_tiny
from ..server.running import RunningEngine, is_alive, wait_for
from ..tiny import VOCAB, write_model_folder

DEADLINE_S = 120.0
LONG = {"model": "model", "prompt": "x" * 100, "max_tokens": 7_000, "stream": True, "ignore_eos": True}


class SplitEngine(RunningEngine):
    deadline_s = DEADLINE_S

    def __init__(self, folder: Path, scratch: Path, **config: object) -> None:
        numbers: dict[str, object] = {"num_blocks_override": 600, "max_model_len": 8_192, "cpu_threads": 1}
        split = {"tensor_parallel_size": 2, **numbers, **config}
        super().__init__(folder, scratch, core="local_engine.core_process", engine=split)

    def rank(self) -> int:
        """The process id of rank 1."""
        core = self.core()
        (rank,) = Path(f"/proc/{core}/task/{core}/children").read_text().split()
        return int(rank)

    def gone(self, *pids: int) -> None:
        wait_for(lambda: not any(is_alive(pid) for pid in pids), "every process to end", DEADLINE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_model_folder(tmp_path_factory.mktemp("split") / "model")
    save_tiny(path, "Llama", {"vocab_size": VOCAB, "max_position_embeddings": 8_192})
    return path


@pytest.fixture
def engine(folder: Path, tmp_path: Path) -> Iterator[SplitEngine]:
    with SplitEngine(folder, tmp_path, distributed_timeout_s=6) as running:
        yield running


def begin(running: SplitEngine) -> tuple[httpx.Client, Any, Iterator[str]]:
    client = httpx.Client(base_url=running.url, trust_env=False, timeout=DEADLINE_S)
    answer = client.send(client.build_request("POST", "/v1/completions", json=LONG), stream=True)
    lines = (line for line in answer.iter_lines() if line)
    assert next(lines).startswith("data: {")
    return client, answer, lines


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "Rank 1 of the engine died (signal 9: most likely the system's out-of-memory killer; "),
        (signal.SIGSTOP, "Rank 1 of the engine has not answered for 6 s and was ended."),
    ],
)
def test_a_rank_that_dies_or_stands_still_is_named_in_band_and_ends_the_engine(
    number: signal.Signals, words: str, engine: SplitEngine
) -> None:
    core, rank = engine.core(), engine.rank()
    client, answer, lines = begin(engine)
    began_s = time.monotonic()
    os.kill(rank, number)
    rest = list(lines)
    answer.close()
    client.close()
    assert f'"message":"{words}' in rest[-1], rest[-1]
    assert time.monotonic() - began_s < DEADLINE_S / 2
    assert engine.process.wait(DEADLINE_S) == 3
    engine.gone(core, rank)


def test_a_stop_leaves_no_process(folder: Path, tmp_path: Path) -> None:
    with SplitEngine(folder, tmp_path) as engine:
        core, rank = engine.core(), engine.rank()
        body = {**LONG, "stream": False, "max_tokens": 4}
        assert httpx.post(f"{engine.url}/v1/completions", json=body, trust_env=False, timeout=DEADLINE_S).is_success
        engine.process.terminate()
        assert engine.process.wait(DEADLINE_S) == 0, engine.log
        engine.gone(core, rank)


def test_ranks_end_with_the_process_that_started_them_even_stopped(engine: SplitEngine) -> None:
    core, rank = engine.core(), engine.rank()
    client, answer, _ = begin(engine)
    os.kill(rank, signal.SIGSTOP)
    engine.process.kill()
    engine.gone(core, rank)
    answer.close()
    client.close()


def test_an_exchange_that_a_rank_does_not_take_part_in_ends_in_time_and_names_it(folder: Path) -> None:
    lost: list[str] = []
    config = EngineConfig(str(folder), device="cpu", tensor_parallel_size=2, distributed_timeout_s=5)
    crew = Crew(config, lost.append)
    group = Group(Shard(0, 2), torch.device("cpu"), crew.store, config.distributed_timeout_s)
    (rank,) = crew.pids
    try:
        with pytest.raises(RuntimeError) as caught:
            group.sum(torch.ones(4))
        error = crew.why(caught.value, group.entered)
        assert lost == [str(error)] and str(error).startswith("The engine's ranks lost step, rank 1 first (")
        wait_for(lambda: not is_alive(rank), "the rank to be ended")
        with pytest.raises(RanksLost, match="lost step"):
            crew.wait()
    finally:
        group.close()
        crew.close()


def test_a_split_that_cannot_be_is_one_line_and_status_1(folder: Path, tmp_path: Path) -> None:
    running = SplitEngine(folder, tmp_path, tensor_parallel_size=3)
    running.start()
    try:
        assert running.process.wait(DEADLINE_S) == 1
        assert (
            "error: --tensor-parallel-size 3 does not divide 4 query and 2 KV heads; valid are 1, 2, 4" in running.log
        )
        assert "Traceback" not in running.log
    finally:
        running.stop()
