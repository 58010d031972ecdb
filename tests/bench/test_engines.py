from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench.engine_load import Point, Target, Wave
from bench.engine_peers import Engine, Entry
from bench.engines import REPEATED_WITHIN, Column, measure, repeated, results
from bench.processes import Process
from tests.bench.scripted_engine import server, stream

POINTS = (Point("few", 2, 32, output_tokens=4), Point("many", 5, 32, output_tokens=4))
RIGHT, WRONG = stream(32, 4, ["a", "b"]), stream(32, 3, ["a"])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """What the engines of these tests are measured as."""
    idle = Process("idle", [sys.executable, "-c", "import time; time.sleep(600)"], env={}, folder=tmp_path, port=0)
    yield idle
    idle.stop()


def column(name: str, process: Process, target: Target, points: tuple[str, ...] = ("few", "many")) -> Column:
    engine = Engine(process, Target(name, target.port, "m"))
    return Column(Entry(name, 16, lambda folder: engine, points), engine)


async def test_each_round_visits_every_engine_once_per_point_that_is_its_own(process: Process) -> None:
    async with server(RIGHT, 100_000) as target:
        columns = [column("all", process, target), column("some", process, target, ("many",))]
        await measure(columns, POINTS, 1, math.inf)
    assert [{point: len(waves) for point, waves in each.waves.items()} for each in columns] == [
        {"few": 1, "many": 1},
        {"many": 1},
    ]
    assert columns[0].waves["many"][0].output_tokens == 20
    assert columns[0].memory_mb > 1


async def test_an_engine_that_answers_wrongly_ends_there_and_the_others_go_on(process: Process) -> None:
    async with AsyncExitStack() as stack:
        wrong, right = [await stack.enter_async_context(server(answer, 100_000)) for answer in (WRONG, RIGHT)]
        columns = [column("wrong", process, wrong), column("right", process, right)]
        await measure(columns, POINTS, 1, math.inf)
    report = results(columns)
    assert report["wrong"]["points"] == {}
    assert str(report["wrong"]["failed"]).startswith("few: WrongAnswer (32, 3) tokens")
    assert report["right"]["failed"] is None
    assert list(report["right"]["points"]) == ["few", "many"]


async def test_when_the_time_is_over_every_point_still_has_its_first_round(process: Process) -> None:
    async with server(RIGHT, 100_000) as target:
        one = column("one", process, target)
        await measure([one], POINTS, 5, -math.inf)
    assert [len(waves) for waves in one.waves.values()] == [1, 1]


async def test_a_visit_far_behind_the_fastest_is_not_made_again(process: Process) -> None:
    columns = [column(name, process, Target(name, 1, "m")) for name in ("fast", "near", "far", "failed")]
    for each, took_s in zip(columns, (1.0, REPEATED_WITHIN, 1.01 * REPEATED_WITHIN), strict=False):
        each.waves["few"] = [Wave(took_s, [0.1], 256)]
    assert [each.entry.name for each in repeated(columns, "few")] == ["fast", "near"]
