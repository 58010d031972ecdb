"""What durability costs: CPU per request of journalling its opening and its outcome, batched, per record, and off.

    python -m bench.journal [--requests 5000] [--rounds 5]

Interleaved; `off` builds the same two records and drops them, so the differences to it are the journal's own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from billing.books import Pins
from billing.usage import Usage
from gateway.ids import new_request_id
from gateway.metering.journal import Journal
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed
from gateway.settings import JournalSettings

PINS = Pins(12, 3400, 7)


def records() -> tuple[AttemptOpened, RequestClosed]:
    request_id, at_us = new_request_id().bytes, time.time_ns() // 1000
    opened = AttemptOpened(
        request_id, 0, at_us, "team_abcdefghijklmnop", "key_abcdefghijklmnop", "CNY", "chat.completions", "deepseek-chat",
        "deepseek", "deepseek", "deepseek-chat", True, {}, PINS, Usage(input=2000, output=4096),
    )  # fmt: skip
    outcome = AttemptOutcome(0, "completed", Usage(input=700, cache_read=512, output=100), 812_345, 204_123)
    return opened, RequestClosed(request_id, at_us, "completed", 0, False, (outcome,), 812_900, 204_500)


def run(requests: int, journal: Journal | None) -> tuple[float, float]:
    """Microseconds of CPU (all threads) and of waiting, per request."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(requests):
        opened, closed = records()
        if journal is not None:
            journal.open(opened)
            journal.close(closed)
    if journal is not None:
        journal.flush()
    return (time.process_time() - cpu) / requests * 1e6, (time.perf_counter() - wall) / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ways: dict[str, Callable[[Path], Journal | None]] = {
        "off": lambda folder: None,
        "batched": lambda folder: Journal(folder, JournalSettings()),
        "record": lambda folder: Journal(folder, JournalSettings(fsync="record")),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, make in ways.items():
            with tempfile.TemporaryDirectory(prefix="metergate-bench-") as folder:
                journal = make(Path(folder))
                figures[name].append(run(options.requests, journal))
                if journal is not None:
                    journal.stop()
    for name, found in figures.items():
        extra = statistics.median(cpu - off for (cpu, _), (off, _) in zip(found, figures["off"], strict=True))
        cpu, wall = (statistics.median(each[at] for each in found) for at in (0, 1))
        print(f"{name:8} {cpu:7.1f} us CPU/request  {wall:8.1f} us wall  {extra:+7.1f} us CPU over off")


if __name__ == "__main__":
    main()
