"""The engine, side by side: ours beside OpenVINO GenAI, vLLM's CPU build, llama.cpp and transformers, on one set of weights.

    python -m bench.engine_peers install         # once: each peer in an environment of its own, and the weights
    python -m bench.engines                      # all that are installed
    python -m bench.engines --quick --only metergate,openvino

Engines of equal bits per weight run beside each other, idle but for one: each round visits every one of them once per point, so
that the machine's noise falls on all alike. Every answer must be a complete stream of as many tokens as were asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.engine_load import Point, Target, Wave, WrongAnswer, wave
from bench.engine_peers import ENGINES, Engine, Entry
from bench.engine_report import render
from bench.engine_roofline import measured
from bench.gateway import machine
from bench.gateways import ROOT
from bench.processes import cpu_seconds, memory_mb

POINTS = (
    Point("short-1", 1, 32),
    Point("short-8", 8, 32),
    Point("short-32", 32, 32),
    Point("short-64", 64, 32),
    Point("long-1", 1, 512),
    Point("long-8", 8, 512),
    Point("long-32", 32, 512),
    Point("shared-32", 32, 1016, shared_tokens=1000),
)
QUICK = ("short-1", "short-8", "short-32")
DEADLINE_S = 120.0
SETTLE_S = 0.3
"""Threads that wait for the next step by spinning give up sooner than that."""
REPEATED_WITHIN = 1.6
"""A visit that took more than so many times the shortest of its point is not made again: no later round changes who leads."""
MINUTES = 11.0
"""After so long no second round begins, so that a run ends within a quarter of an hour."""


@dataclass(slots=True)
class Column:
    """One engine of a run: what its visits measured, the most memory it held, and why it has no figures."""

    entry: Entry
    engine: Engine | None = None
    waves: dict[str, list[Wave]] = field(default_factory=dict)
    memory_mb: float = 0.0
    ready_s: float = 0.0
    failed: str | None = None
    idle_s: float = 0.0
    idle_cpu_s: float = 0.0
    """CPU that it took while others were visited for `idle_s`."""


async def visit(target: Target, point: Point, seed: str) -> Wave:
    """One wave; a shared prefix has been seen once before, as a system prompt has."""
    if point.shared_tokens:
        await wave(target, Point("warm", 1, point.prompt_tokens, point.shared_tokens, 1), seed, DEADLINE_S)
    return await wave(target, point, seed, DEADLINE_S)


async def measure(columns: Sequence[Column], points: Iterable[Point], rounds: int, ends_s: float) -> None:
    """Visits every column once per point and round. From `ends_s` of the monotonic clock on, only first rounds begin."""
    for point in points:
        visited = [column for column in columns if column.engine is not None and point.name in column.entry.points]
        for turn in range(rounds):
            if turn and time.monotonic() > ends_s:
                break
            for column in repeated(visited, point.name) if turn else visited:
                if column.engine is None or column.failed:
                    continue
                await asyncio.sleep(SETTLE_S)
                others = {other.entry.name: _cpu(other) for other in columns if other is not column}
                try:
                    seen = await visit(column.engine.target, point, f"{point.name} {turn} {time.time_ns()}")
                except (WrongAnswer, TimeoutError, OSError) as error:
                    column.failed = (
                        f"{point.name}: {type(error).__name__} {error}; {column.engine.process.tail()[-400:]}"
                    )
                    continue
                column.waves.setdefault(point.name, []).append(seen)
                column.memory_mb = max(column.memory_mb, memory_mb(column.engine.process.pid))
                for other in columns:
                    if other is not column:
                        other.idle_cpu_s += _cpu(other) - others[other.entry.name]
                        other.idle_s += seen.elapsed_s


def repeated(columns: Sequence[Column], point: str) -> list[Column]:
    """Those whose last visit was not hopelessly slower than the fastest one."""
    took = {column.entry.name: column.waves[point][-1].elapsed_s for column in columns if column.waves.get(point)}
    return [
        column
        for column in columns
        if took.get(column.entry.name, math.inf) <= REPEATED_WITHIN * min(took.values(), default=0.0)
    ]


def _cpu(column: Column) -> float:
    return cpu_seconds(column.engine.process.pid) if column.engine is not None else 0.0


async def compare(
    entries: Sequence[Entry], points: Sequence[Point], rounds: int, folder: Path, ends_s: float
) -> list[Column]:
    """All engines of equal bits, beside each other."""
    columns = [Column(entry) for entry in entries]
    try:
        for column in columns:
            try:
                column.engine = column.entry.start(folder)
                column.ready_s = column.engine.process.ready_s
                for warm in (Point("warm", 1, 32, output_tokens=8), Point("warm", 8, 64, output_tokens=16)):
                    await wave(column.engine.target, warm, f"{column.entry.name} {time.time_ns()}", DEADLINE_S)
            except (FileNotFoundError, RuntimeError, TimeoutError, OSError) as error:
                column.failed = f"{type(error).__name__}: {error}"
        await measure(columns, points, rounds, ends_s)
    finally:
        for column in columns:
            if column.engine is not None:
                column.engine.process.stop()
    return columns


def results(columns: Sequence[Column]) -> dict[str, dict[str, Any]]:
    return {
        column.entry.name: {
            "bits": column.entry.bits,
            "ready_s": round(column.ready_s, 1),
            "memory_mb": round(column.memory_mb),
            "idle_cpu": round(column.idle_cpu_s / column.idle_s, 3) if column.idle_s else 0.0,
            "failed": column.failed,
            "points": {
                point: {
                    "tokens_per_s": [round(seen.tokens_per_s, 1) for seen in waves],
                    "first_p50_ms": [round(seen.first_p50_ms, 1) for seen in waves],
                }
                for point, waves in column.waves.items()
            },
        }
        for column in columns
    }


def _end(number: int, frame: object) -> None:
    """An interrupted run ends its servers too."""
    raise SystemExit(f"ended by signal {number}")


def main() -> None:
    signal.signal(signal.SIGTERM, _end)
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="names or their beginnings, by commas: metergate,openvino")
    parser.add_argument("--bits", default="16,8,4")
    parser.add_argument("--points", default=",".join(point.name for point in POINTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one round of three points")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin no second round after so long")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "engines.json")
    options = parser.parse_args()
    chosen = QUICK if options.quick else options.points.split(",")
    points = [point for point in POINTS if point.name in chosen]
    rounds = 1 if options.quick else options.rounds
    ends_s = time.monotonic() + 60 * options.minutes
    rooflines: dict[str, object] = {}
    engines: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="metergate-bench-") as folder:
        for bits in map(int, options.bits.split(",")):
            entries = [
                entry
                for entry in ENGINES
                if entry.bits == bits and entry.name.startswith(tuple(options.only.split(",")))
            ]
            rooflines[str(bits)] = asdict(measured())
            columns = uvloop.run(compare(entries, points, rounds, Path(folder), ends_s))
            engines |= results(columns)
    report = {
        "machine": machine(),
        "rounds": rounds,
        "rooflines": rooflines,
        "points": [asdict(point) for point in points],
        "engines": engines,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(render(report))


if __name__ == "__main__":
    main()
