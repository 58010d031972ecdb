"""Hard budgets under a thousand callers at once: five whole gateway processes on one Valkey, which is killed, frozen and wiped.

    python -m bench.admission                    # prints the table, keeps it in bench/results/admission.json
    python -m bench.admission --requests 300 --room 41

Each line is one scenario with a budget of its own that has room for exactly so many requests (and a nano less than one more).
The law: so many are admitted and not one more, what is spent is what the rows say and within the limit to the nano, and
nothing is reserved in the end. Any line that breaks it ends the run with status 1. Times are of a busy machine and no measure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import Provider
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.admission.fleet import Fleet, Run, frozen, killed, wiped
from tests.gateway.metering.books import BooksDatabase

ROOT: Final = Path(__file__).parents[1]
RESULT: Final = ROOT / "bench" / "results" / "admission.json"
COLUMNS: Final = (
    "scenario",
    "processes",
    "requests",
    "room",
    "admitted",
    "over",
    "spent",
    "limit",
    "reserved",
    "503",
    "burst",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--room", type=int, default=137)
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="metergate-admission-"))
    folder.chmod(0o755)
    (folder / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder / "runtime"))
    provider, database, valkey = Provider(), OwnPostgresql(folder / "postgresql"), ValkeyServer(folder)
    valkey.start()
    BooksDatabase(database.url).migrate()
    try:
        runs = asyncio.run(_all(folder, database.url, provider, valkey, options))
    finally:
        provider.stop()
        valkey.stop()
        database.remove()
    _print(runs)
    RESULT.write_text(json.dumps(_kept(runs), indent=2) + "\n")
    if any(run.wrong() for run in runs):
        sys.exit(1)


async def _all(
    folder: Path, database_url: str, provider: Provider, valkey: ValkeyServer, options: argparse.Namespace
) -> list[Run]:
    requests, room = options.requests, options.room
    runs = []
    for name, size, store in (("memory", 1, None), ("valkey", options.processes, valkey)):
        fleet = Fleet(folder / name, database_url, provider, size, store)
        try:
            await asyncio.to_thread(fleet.start)
            runs.append(await fleet.run(name, requests, room))
            for harm in (killed, frozen, wiped) if store else ():
                runs.append(await fleet.run(f"{name}, {harm.__name__}", requests, room, harm))
        finally:
            await asyncio.to_thread(fleet.stop)
    return runs


def _print(runs: list[Run]) -> None:
    lines = [COLUMNS]
    for run in runs:
        refused = run.statuses[503] + run.later[503]
        over = max(0, run.spent_nano - run.limit_nano)
        cells = (
            run.name, run.processes, run.requests, run.room, run.admitted, over, run.spent_nano, run.limit_nano,
            run.reserved_nano, refused, f"{run.burst_s:.1f} s",
        )  # fmt: skip
        lines.append(tuple(map(str, cells)))
    widths = [max(len(line[at]) for line in lines) for at in range(len(COLUMNS))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    for run in runs:
        for wrong in run.wrong():
            print(f"{run.name}: {wrong}")


def _kept(runs: list[Run]) -> dict[str, object]:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    return {"machine": machine, "python": platform.python_version(), "runs": [run.figures() for run in runs]}


if __name__ == "__main__":
    main()
