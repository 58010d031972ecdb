"""What durability costs: CPU per request of journalling its opening and its outcome, batched, per record, and off.

    python -m bench.journal [--requests 2000] [--rounds 9]

Interleaved; `off` builds the same two records and drops them, so the differences to it are the journal's own. Once as fast as
it goes, where a batched sync is shared by thousands; once at a steady pace, where a handful share it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.gateway import machine
from billing.books import Pins
from billing.usage import Usage
from gateway.ids import new_request_id
from gateway.metering.journal import Journal
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed
from gateway.settings import JournalSettings

PINS = Pins(12, 3400, 7)
PACE_S: Final = 0.002
RESULTS: Final = Path(__file__).parent / "results" / "journal.json"


def records() -> tuple[AttemptOpened, RequestClosed]:
    request_id, at_us = new_request_id().bytes, time.time_ns() // 1000
    opened = AttemptOpened(
        request_id, 0, at_us, "team_abcdefghijklmnop", "key_abcdefghijklmnop", "CNY", "chat.completions", "deepseek-chat",
        "deepseek", "deepseek", "deepseek-chat", True, {}, PINS, Usage(input=2000, output=4096),
    )  # fmt: skip
    outcome = AttemptOutcome(0, "completed", Usage(input=700, cache_read=512, output=100), 812_345, 204_123)
    return opened, RequestClosed(request_id, at_us, "completed", 0, False, (outcome,), 812_900, 204_500)


def run(requests: int, pause_s: float, journal: Journal | None) -> tuple[float, float]:
    """Microseconds of CPU (all threads) and of waiting for the journal, per request."""
    waited_s, cpu_s = 0.0, time.process_time()
    for _ in range(requests):
        opened, closed = records()
        if journal is not None:
            began_s = time.perf_counter()
            journal.open(opened)
            journal.close(closed)
            waited_s += time.perf_counter() - began_s
        if pause_s:
            time.sleep(pause_s)
    if journal is not None:
        journal.flush()
    return (time.process_time() - cpu_s) / requests * 1e6, waited_s / requests * 1e6


WAYS: Final[dict[str, JournalSettings | None]] = {
    "off": None,
    "batched": JournalSettings(),
    "record": JournalSettings(fsync="record"),
}


def compare(requests: int, rounds: int, pause_s: float) -> dict[str, dict[str, float]]:
    """The medians over all rounds; `over_off_us` is the median of the differences within each round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, settings in WAYS.items():
            with tempfile.TemporaryDirectory(prefix="metergate-bench-") as folder:
                journal = None if settings is None else Journal(Path(folder), settings)
                found[name].append(run(requests, pause_s, journal))
                if journal is not None:
                    journal.stop()
    off = [cpu for cpu, _ in found["off"]]
    return {
        name: {
            "cpu_us": round(statistics.median(cpu for cpu, _ in each), 1),
            "over_off_us": round(statistics.median(cpu - base for (cpu, _), base in zip(each, off, strict=True)), 1),
            "caller_waits_us": round(statistics.median(waited for _, waited in each), 1),
        }
        for name, each in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    figures = {
        "machine": machine(),
        "requests": options.requests,
        "rounds": options.rounds,
        "one_after_the_other": compare(options.requests, options.rounds, 0.0),
        f"one_every_{PACE_S * 1000:g}_ms": compare(options.requests // 4, options.rounds, PACE_S),
    }
    print(json.dumps(figures, indent=1))
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
