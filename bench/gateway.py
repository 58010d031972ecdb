"""The door, side by side: direct, the bare forward, Metergate with everything on, and its peers, in one interleaved run.

    python -m bench.gateway                      # all that are installed
    python -m bench.gateway --only metergate,forward --rounds 2 --quick

Every gateway has the same core, its recorder included; callers, provider, databases and limit stores have the others. Where they
share, the kernel lets a provider wait behind the very gateway that it is to answer, and a first chunk shows little else.
Each round visits every gateway once per load, so that the machine's noise falls on all alike. What is compared first is CPU
per request (user + system time of the gateway's process tree over the requests it served), then ratios, then requests/s.
A wrong answer, or a usage row missing afterwards, ends the run with an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.gateways import GATEWAYS, ROOT, Gateway
from bench.load import Outcome, Target, run_load
from bench.processes import Process, cpu_seconds, free_port, memory_mb, pin, split_cores


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load. `requests` is at full speed; a slow gateway gets the part its last round says it can do in time."""

    name: str
    callers: int
    requests: int
    stream: bool = False
    chunks: int = 0
    gap_ms: int = 0


LOADS = (
    Load("plain-1", 1, 1500),
    Load("plain-16", 16, 10000),
    Load("plain-64", 64, 10000),
    Load("burst-16", 16, 400, stream=True, chunks=200),
    Load("paced-32", 32, 64, stream=True, chunks=50, gap_ms=20),
    Load("paced-500", 500, 500, stream=True, chunks=25, gap_ms=20),
)
LOAD_BEFORE = os.getloadavg()[0]
"""What else ran when this began: beside other work only ratios mean something."""
VISIT_S = 6.0
"""How long one visit may take; a slow gateway gets fewer requests."""


@dataclass(slots=True)
class Sample:
    """One visit: what the callers saw and what the gateway's process tree spent."""

    per_s: float
    p50_ms: float
    p99_ms: float
    first_p50_ms: float
    first_p99_ms: float
    cpu_us: float


def sample(load: Load, outcome: Outcome, cpu_s: float) -> Sample:
    units = outcome.chunks if load.stream else outcome.requests
    return Sample(
        per_s=units / outcome.elapsed_s,
        p50_ms=outcome.percentile_ms(outcome.latencies_s, 0.5),
        p99_ms=outcome.percentile_ms(outcome.latencies_s, 0.99),
        first_p50_ms=outcome.percentile_ms(outcome.first_s, 0.5),
        first_p99_ms=outcome.percentile_ms(outcome.first_s, 0.99),
        cpu_us=1e6 * cpu_s / units if units else 0.0,
    )


async def visit(target: Target, load: Load, share: float, pid: int | None) -> tuple[Sample, int, float]:
    count = max(load.callers, int(load.requests * share))
    before = cpu_seconds(pid) if pid else 0.0
    outcome = await run_load(
        target,
        callers=load.callers,
        requests=count,
        stream=load.stream,
        chunks=load.chunks,
        gap_ms=load.gap_ms,
        deadline_s=180,
    )
    if outcome.bad:
        raise SystemExit(
            f"{target.name}: {outcome.bad} wrong answers under {load.name}; the first: {outcome.first_bad}"
        )
    await asyncio.sleep(0.3)  # the recorder's share belongs to the requests it recorded
    spent = (cpu_seconds(pid) - before) if pid else 0.0
    return sample(load, outcome, spent), outcome.requests, outcome.elapsed_s


async def measure(
    names: list[str],
    loads: list[Load],
    rounds: int,
    share: float,
    folder: Path,
    visit_s: float = VISIT_S,
    ends_s: float = math.inf,
) -> dict[str, object]:
    """From `ends_s` of the monotonic clock on, nothing is begun that a result can do without."""
    port = free_port()
    environment = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.upstream", "--port", str(port)]
    gateway_core, others = split_cores()
    os.sched_setaffinity(0, others)
    provider = Process("provider", command, env=environment, folder=folder, port=port)
    gateways: dict[str, Gateway] = {}
    skipped: dict[str, str] = {}
    try:
        for name in names:
            try:
                gateways[name] = GATEWAYS[name](port, folder)
                pin(gateways[name].process.pid, gateway_core)
            except FileNotFoundError as error:
                skipped[name] = str(error)
        return await compare(gateways, skipped, loads, rounds, share, port, visit_s, ends_s)
    finally:
        for gateway in gateways.values():
            gateway.stop()
        provider.stop()


async def compare(
    gateways: dict[str, Gateway],
    skipped: dict[str, str],
    loads: list[Load],
    rounds: int,
    share: float,
    upstream: int,
    visit_s: float,
    ends_s: float,
) -> dict[str, object]:
    everyone: dict[str, tuple[Target, int | None]] = {"direct": (Target("direct", upstream, "bench-model"), None)}
    everyone |= {name: (gateway.target, gateway.process.pid) for name, gateway in gateways.items()}
    sent = dict.fromkeys(everyone, 0)
    idle = {name: memory_mb(gateway.process.pid) for name, gateway in gateways.items()}
    for name, (target, _) in everyone.items():  # warm up: connections, caches, compiled code
        for load in (Load("warm", 8, 200), Load("warm", 4, 8, stream=True, chunks=50)):
            _, count, _ = await visit(target, load, 1.0, None)
            sent[name] += count
    samples: dict[str, dict[str, list[Sample]]] = {load.name: {name: [] for name in everyone} for load in loads}
    for load in loads:
        if time.monotonic() > ends_s:
            skipped[load.name] = "the time was over"
            del samples[load.name]
            continue
        shares = dict.fromkeys(everyone, share)
        for turn in range(rounds + 1):  # the first, short turn only finds out how many requests fit into the time
            if turn > 1 and time.monotonic() > ends_s:
                break
            for name, (target, pid) in everyone.items():
                part = min(shares[name], 0.05) if turn == 0 and not load.gap_ms else shares[name]
                measured, count, elapsed_s = await visit(target, load, part, pid)
                sent[name] += count
                if turn == 0 and not load.gap_ms:
                    shares[name] = min(share, part * visit_s / max(elapsed_s, 0.001))
                else:
                    samples[load.name][name].append(measured)
    for name, gateway in gateways.items():
        await check_rows(name, gateway, sent[name])
    return {
        "machine": machine(),
        "skipped": skipped,
        "ready_s": {name: round(gateway.process.ready_s, 2) for name, gateway in gateways.items()},
        "memory_mb": {
            name: {"idle": round(idle[name]), "after": round(memory_mb(gateway.process.pid)), "requests": sent[name]}
            for name, gateway in gateways.items()
        },
        "loads": {load: {name: summary(values) for name, values in by.items()} for load, by in samples.items()},
    }


async def check_rows(name: str, gateway: Gateway, sent: int, deadline_s: float = 60) -> None:
    """Every request that was answered has its row, and no other: the books are part of what is measured."""
    end = time.monotonic() + deadline_s
    rows = gateway.rows()
    while rows is not None and rows != sent:
        if time.monotonic() > end or rows > sent:
            raise SystemExit(f"{name}: {sent} requests were answered, {rows} usage rows stand in the database")
        await asyncio.sleep(0.2)
        rows = gateway.rows()


def summary(values: list[Sample]) -> dict[str, list[float]]:
    """Median, lowest and highest over the rounds."""
    table: dict[str, list[float]] = {}
    for column in ("per_s", "p50_ms", "p99_ms", "first_p50_ms", "first_p99_ms", "cpu_us"):
        series = [getattr(value, column) for value in values]
        table[column] = [round(x, 3) for x in (statistics.median(series), min(series), max(series))]
    return table


def machine() -> dict[str, object]:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "?",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": round(LOAD_BEFORE, 1),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def show(results: dict[str, object]) -> str:
    loads = results["loads"]
    assert isinstance(loads, dict)
    lines = []
    for load, by in loads.items():
        unit = "chunk" if load.startswith(("burst", "paced")) else "request"
        lines += ["", f"{load}: median of the rounds (lowest to highest)", ""]
        lines += [f"| gateway | {unit}s/s | of direct | CPU us/{unit} | p50 ms | p99 ms | first p50/p99 ms |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        base = by["direct"]["per_s"][0]
        for name, row in by.items():
            per_s, cpu = row["per_s"], row["cpu_us"]
            first = f"{row['first_p50_ms'][0]:.1f} / {row['first_p99_ms'][0]:.1f}" if unit == "chunk" else "-"
            lines.append(
                f"| {name} | {per_s[0]:,.0f} ({per_s[1]:,.0f}-{per_s[2]:,.0f}) | {per_s[0] / base:.2f} | "
                f"{cpu[0]:.1f} ({cpu[1]:.1f}-{cpu[2]:.1f}) | {row['p50_ms'][0]:.2f} | {row['p99_ms'][0]:.2f} | {first} |"
            )
    return "\n".join(lines)


def ratios(results: dict[str, object], own: str = "metergate") -> str:
    """What Metergate needs and does, as a multiple of each other gateway's: CPU below 1 and requests/s above 1 are good."""
    loads = results["loads"]
    assert isinstance(loads, dict)
    others = [name for name in next(iter(loads.values())) if name not in ("direct", own)]
    lines = ["", f"{own}: CPU per unit and units/s, as a multiple of …", "", "| load | " + " | ".join(others) + " |"]
    lines += ["| --- " * (len(others) + 1) + "|"]
    for load, by in loads.items():
        mine = by[own]
        cells = [
            f"{mine['cpu_us'][0] / by[name]['cpu_us'][0]:.2f} / {mine['per_s'][0] / by[name]['per_s'][0]:.2f}"
            if by[name]["cpu_us"][0] and by[name]["per_s"][0]
            else "-"
            for name in others
        ]
        lines.append(f"| {load} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(GATEWAYS))
    parser.add_argument("--loads", default=",".join(load.name for load in LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests")
    parser.add_argument("--visit-s", type=float, default=VISIT_S, help="seconds of one visit at most")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further round or load after so long")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "gateway.json")
    options = parser.parse_args()
    loads = [load for load in LOADS if load.name in options.loads.split(",")]
    with tempfile.TemporaryDirectory(prefix="metergate-bench-") as folder:
        share = 0.2 if options.quick else 1.0
        names = options.only.split(",")
        ends_s = time.monotonic() + 60 * options.minutes
        results = uvloop.run(measure(names, loads, options.rounds, share, Path(folder), options.visit_s, ends_s))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(show(results))
    print(ratios(results))
    print(json.dumps({key: results[key] for key in ("machine", "skipped", "ready_s", "memory_mb")}, indent=1))


if __name__ == "__main__":
    main()
