"""Fault runs at random, for as long as one likes: a gateway in traffic is harmed again and again, and the books must agree.

    python -m bench.soak                     # 500 runs
    python -m bench.soak --runs 50 --seed 7  # the same choices again (what is killed when still depends on the machine)

Each run draws one of the harms of `tests/faults/harm.py`: the gateway killed (also while it adopts, while the database is
away), its recorder killed or frozen, told to stop, the database frozen or crashed, the limit store frozen or wiped, the clock
set back, the journal's disk filled, callers leaving and providers breaking off behind any event, falling silent or failing.
The law of `tests/faults/gateway_law.py` is checked after each; every 60 runs also that nothing derived differs from its rows,
that the budget has spent what they say, and that no lease is left. The first violation ends the soak with status 1 and leaves
the folder for a look.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gateway.metering.segments import POSITION_NAME, process_folders
from tests.faults import harm
from tests.faults.gateway_law import forget, unsettled, violations
from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import Provider, Stage
from tests.fixtures.valkey import ValkeyServer

ROOT = Path(__file__).parents[1]
REST_S = 90.0
FORGET_EVERY = 20
SETTLE_EVERY = 60
LEASE_S = 100.0


def harms(database: OwnPostgresql, small_disk: bool) -> dict[str, list[harm.Harm]]:
    """Name to the harms that are drawn from under it; each name is as likely as the others."""
    drawn: dict[str, list[harm.Harm]] = {
        "kill": [harm.kill],
        "kill-twice": [harm.kill_twice],
        "kill-recorder": [harm.kill_recorder],
        "freeze-recorder": [harm.freeze_recorder],
        "kill-no-database": [harm.kill_while_database_is_away(database)],
        "stop": [harm.stop],
        "leave": [*(harm.leaves(after) for after in range(6)), harm.leave_at_once],
        "cut": [harm.cut(after) for after in range(6)],
        "troubles": [harm.troubles],
        "freeze-database": [harm.freeze_database(database)],
        "crash-database": [harm.crash_database(database)],
        "freeze-limits": [harm.freeze_limits],
        "wipe-limits": [harm.wipe_limits],
        "clock-back": [harm.clock_back],
        "nothing": [harm.nothing],
    }
    if small_disk:
        drawn["full-disk"] = [harm.full_disk]
    return drawn


def at_rest(stage: Stage) -> list[str]:
    """The violations that are still there when everything has had its time."""
    until = time.monotonic() + REST_S
    while (found := violations(stage)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def at_peace(stage: Stage) -> list[str]:
    """What is still wrong with budget, leases and derived figures when every lease has had its time."""
    until = time.monotonic() + LEASE_S
    while (found := unsettled(stage)) and time.monotonic() < until:
        time.sleep(0.5)
    return found


def replay(stage: Stage) -> list[str]:
    """Ships every journal once more: nothing may change."""
    stage.gateway.stop()
    before = stage.database.digest()
    for folder in process_folders(stage.home / "journal"):
        (folder / POSITION_NAME).unlink(missing_ok=True)
    stage.gateway.start()
    stage.gateway.wait_ready()
    stage.gateway.stop()
    return [] if stage.database.digest() == before else ["a replay of all journals changed the books"]


def soak(stage: Stage, drawn: dict[str, list[harm.Harm]], runs: int, until_s: float) -> tuple[Counter[str], list[str]]:
    done: Counter[str] = Counter()
    names = sorted(drawn)
    for number in range(1, runs + 1):
        if time.monotonic() > until_s:
            break
        name = stage.dice.choice(names)
        asyncio.run(stage.dice.choice(drawn[name])(stage))
        found = at_rest(stage)
        done[name] += 1
        if found:
            return done, [f"run {number}, {name}", *found]
        if number % FORGET_EVERY == 0:
            forget(stage)
            if number % SETTLE_EVERY == 0 and (found := at_peace(stage)):
                return done, [f"after run {number}", *found]
            print(f"{number} runs, {stage.database.count('usage')} rows, no violation", flush=True)
    stage.gateway.set_clock_back(0)
    return done, at_peace(stage) or replay(stage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--minutes", type=int, default=120, help="end after this long in any case")
    parser.add_argument("--seed")
    options = parser.parse_args()
    if options.seed:
        os.environ["FAULT_SEED"] = options.seed
    folder = Path(tempfile.mkdtemp(prefix="metergate-soak-"))
    folder.chmod(0o755)
    disk = folder / "disk"
    disk.mkdir()
    (folder / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder / "runtime"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(disk)]
    small = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    provider, database, valkey = Provider(), OwnPostgresql(folder / "postgresql"), ValkeyServer(folder)
    valkey.start()
    stage = Stage(disk / "home", database.url, provider, valkey)
    stage.database.migrate()
    started_s = time.monotonic()
    try:
        stage.open()
        done, found = soak(stage, harms(database, small), options.runs, started_s + options.minutes * 60)
        rows = stage.database.rows("SELECT status, count(*) FROM usage GROUP BY status ORDER BY status")
    finally:
        stage.kill_everything()
        valkey.stop()
        database.remove()
        provider.stop()
        if small:
            subprocess.run(["umount", "-l", str(disk)], check=False)
    figures = {
        "runs": sum(done.values()),
        "violations": found,
        "by_harm": dict(sorted(done.items())),
        "rows": {str(status): int(count) for status, count in rows},
        "minutes": round((time.monotonic() - started_s) / 60, 1),
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
    }
    print(json.dumps(figures, indent=1))
    (ROOT / "bench" / "results").mkdir(exist_ok=True)
    (ROOT / "bench" / "results" / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
