"""Five gateways behind HAProxy, restarted one by one and killed under load, for as long as one likes; every row is counted.

    python -m bench.replicas                 # ten minutes
    python -m bench.replicas --minutes 2 --replicas 3
    python -m bench.replicas --pause 0.3 --settle 5     # beside other work

Callers ask through the balancer, without a pause if none is named. Each replica in turn leaves the balancer, is told to stop,
drains, ships, starts again; after each round one is killed. At the end: no caller failed but those under way at a killed
replica, each request has one row, the rows equal the provider's book (`tests/faults/gateway_law.py`), the budget equals the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from pathlib import Path

from tests.faults.fleet import Death, Fleet, rolling
from tests.faults.gateway_law import unsettled
from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import Provider
from tests.fixtures.valkey import ValkeyServer

RESULT = Path(__file__).parent / "results" / "replicas.json"
REST_S = 120.0


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between a caller's answer and next question")
    parser.add_argument(
        "--settle", type=float, default=0.0, help="seconds from one replica's return to the next restart"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metergate-replicas-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chmod(folder, 0o755)  # PostgreSQL runs as a user of its own where we are root
        provider, valkey, database = Provider(), ValkeyServer(folder), OwnPostgresql(folder / "postgresql")
        valkey.start()
        fleet = Fleet(folder / "homes", database.url, provider, valkey, given.replicas)
        fleet.database.migrate()
        try:
            fleet.open()
            report = measure(fleet, given.minutes * 60, given.callers, given.pause, given.settle)
            fleet.stop()
        finally:
            fleet.kill_everything()
            valkey.stop()
            provider.stop()
            database.remove()
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    raise SystemExit(bool(report["violations"] or report["failed callers"] or report["budget against rows"]))


def measure(fleet: Fleet, seconds: float, callers: int, pause_s: float, settle_s: float) -> dict[str, object]:
    begun_s = time.monotonic()
    deaths: list[Death] = []
    rounds = 0
    while time.monotonic() - begun_s < seconds:
        deaths += asyncio.run(rolling(fleet, abreast=callers, rounds=1, deaths=1, pause_s=pause_s, settle_s=settle_s))
        rounds += 1
        print(f"round {rounds}: {len(fleet.served)} callers, {len(fleet.failed(deaths))} failed", flush=True)
    lasted_s = time.monotonic() - begun_s
    violations = fleet.at_rest(REST_S)
    failed = fleet.failed(deaths)
    under_way = sum(not each.heard.complete for each in fleet.served) - len(failed)
    whole = [each.ended_s - each.begun_s for each in fleet.served if each.heard.complete]
    until_s = time.monotonic() + REST_S
    while (budget := unsettled(fleet)) and time.monotonic() < until_s:
        time.sleep(0.5)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "replicas": len(fleet.replicas),
        "callers abreast": callers,
        "seconds between a caller's questions": pause_s,
        "seconds": round(lasted_s, 1),
        "rolling restarts": rounds * len(fleet.replicas),
        "killed": len(deaths),
        "requests": len(fleet.served),
        "failed callers": [str(each.heard) for each in failed],
        "callers under way at a killed replica": under_way,
        "seconds of a whole answer, p50 and p99": [round(percentile(whole, share), 3) for share in (0.5, 0.99)],
        "rows": fleet.database.count("usage"),
        "violations": violations,
        "budget against rows": budget,
        "a revoked key was served for (s)": round(fleet.revoked_within_s(), 2),
    }


if __name__ == "__main__":
    main()
