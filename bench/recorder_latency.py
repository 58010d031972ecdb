"""What the recorder's thread costs the door: how late the event loop wakes while the recorder works off a backlog.

    python -m bench.recorder_latency

A loop as the door's wakes 500 times a second while `Recorder` ships 20,000 rows out of a dead process's journal to SQLite, under
several switch intervals of the interpreter, interleaved. Lateness is what a request that arrives then would wait.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.metering import Database, journalled, publish
from gateway.database import upgrade
from gateway.metering.position import read_position
from gateway.metering.recorder import Recorder
from gateway.metering.segments import POSITION_NAME
from gateway.metrics import Metrics
from gateway.services import GC_YOUNG
from gateway.settings import JournalSettings

EVERY_S = 0.002


async def _lateness(until: float, done: list[bool]) -> list[float]:
    """How late each wake-up was, in microseconds, until `done` or the deadline."""
    late: list[float] = []
    while not done and time.monotonic() < until:
        due = time.monotonic() + EVERY_S
        await asyncio.sleep(EVERY_S)
        late.append((time.monotonic() - due) * 1e6)
    return late


async def _run(database: Database, journal: Path, busy: bool) -> tuple[list[float], float]:
    await database.fresh()
    (journal / POSITION_NAME).unlink(missing_ok=True)
    gc.collect()
    gc.freeze()
    began = time.monotonic()
    if not busy:
        return await _lateness(began + 1.5, []), 1.5
    recorder = Recorder(journal.parent, database.url, JournalSettings(), Metrics())
    done: list[bool] = []

    async def watch() -> None:
        while read_position(journal).complete_us is None:
            await asyncio.sleep(0.02)
        done.append(True)

    watching = asyncio.ensure_future(watch())
    recorder.start()
    late = await _lateness(began + 60, done)
    took_s = time.monotonic() - began
    await watching
    await asyncio.to_thread(recorder.stop, drain=False)
    return late, took_s


async def main(rows: int, rounds: int) -> None:
    gc.set_threshold(GC_YOUNG, 20, 50)
    with tempfile.TemporaryDirectory(prefix="metergate-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        database = Database(f"sqlite:///{folder / 'metergate.db'}", None)
        await upgrade(database.url)
        team, pins = await publish(database.url)
        await database.keep()
        journal = journalled(folder / "journal", team, pins, rows)
        kept = shutil.copytree(journal, folder / "kept")
        print(
            f"{'switch interval':>16} {'p50':>8} {'p90':>8} {'p99':>8} {'most':>9}  us late   seconds for {rows} rows"
        )
        figures: dict[str, list[tuple[list[float], float]]] = {}
        for _ in range(rounds):
            for interval_ms in (None, 5.0, 1.0, 0.5, 0.2):
                sys.setswitchinterval((interval_ms or 5.0) / 1000)
                if not journal.exists():
                    shutil.copytree(kept, journal)
                result = await _run(database, journal, interval_ms is not None)
                figures.setdefault("no recorder" if interval_ms is None else f"{interval_ms} ms", []).append(result)
        for label, results in figures.items():
            cuts = [statistics.quantiles(late, n=100) for late, _ in results]
            p50, p90, p99 = (statistics.median(cut[at] for cut in cuts) for at in (49, 89, 98))
            most = max(max(late) for late, _ in results)
            took_s = statistics.median(seconds for _, seconds in results)
            print(f"{label:>16} {p50:8.0f} {p90:8.0f} {p99:8.0f} {most:9.0f}  {took_s:12.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    uvloop.run(main(options.rows, options.rounds))
