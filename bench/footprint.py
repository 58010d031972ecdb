"""What a gateway takes of a machine: memory per process as requests pass, and the time from start to ready.

    python -m bench.footprint                    # 200,000 requests in four steps, five starts
    python -m bench.footprint --requests 20000 --starts 2

One worker with everything on, SQLite and memory limits. Memory is proportional (shared pages counted once); the first start of a
home migrates its database, later ones find it there. Rows are counted at the end: none may be missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop

from bench.gateway import check_rows, machine
from bench.gateways import ROOT, Gateway, metergate, serve_command, wait_ready
from bench.load import run_load
from bench.processes import Process, free_port, memory_mb, own_memory_mb, tree
from gateway.database import upgrade

STEPS = 4
CALLERS = 16


def memory(gateway: Gateway) -> dict[str, float]:
    """MB of the door and of its recorder."""
    door, *children = tree(gateway.process.pid)
    return {
        "door": round(own_memory_mb(door), 1),
        "recorder": round(sum(own_memory_mb(each) for each in children), 1),
        "together": round(memory_mb(gateway.process.pid), 1),
    }


async def under_requests(requests: int, folder: Path) -> list[dict[str, float]]:
    port = free_port()
    command = [sys.executable, "-m", "bench.upstream", "--port", str(port)]
    provider = Process("provider", command, env={"PYTHONPATH": str(ROOT)}, folder=folder, port=port)
    home = folder / "metergate"
    home.mkdir()
    with ThreadPoolExecutor(1) as thread:  # migrating loads what a gateway that was there before never loads
        thread.submit(asyncio.run, upgrade(f"sqlite:///{home}/metergate.db")).result()
    gateway = metergate(port, folder)
    try:
        steps: list[dict[str, float]] = [{"requests": 0, **memory(gateway)}]
        for step in range(1, STEPS + 1):
            outcome = await run_load(gateway.target, callers=CALLERS, requests=requests // STEPS, deadline_s=600)
            if outcome.bad:
                raise SystemExit(f"{outcome.bad} wrong answers; the first: {outcome.first_bad}")
            await asyncio.sleep(1)
            steps.append({"requests": step * (requests // STEPS), **memory(gateway)})
            print(steps[-1], flush=True)
        await check_rows("metergate", gateway, STEPS * (requests // STEPS), deadline_s=120)
        return steps
    finally:
        gateway.stop()
        provider.stop()


def starts(count: int, folder: Path) -> dict[str, float]:
    """Seconds from the command to `/health/ready`, median: of a new home, and of one that was there."""
    seconds: dict[str, list[float]] = {"first": [], "again": []}
    for turn in range(count):
        home = folder / f"home-{turn}"
        home.mkdir()
        for kind in ("first", "again"):
            port = free_port()
            command, environment = serve_command(home, port, upstream=9)
            began = time.perf_counter()
            process = Process(f"start-{turn}-{kind}", command, env=environment, folder=folder, port=0)
            wait_ready(port)
            seconds[kind].append(time.perf_counter() - began)
            process.stop()
    return {kind: round(statistics.median(values), 2) for kind, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "footprint.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metergate-bench-") as folder:
        ready = starts(options.starts, Path(folder))
        steps = uvloop.run(under_requests(options.requests, Path(folder)))
    results = {"machine": machine(), "ready_s": ready, "memory_mb": steps}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
