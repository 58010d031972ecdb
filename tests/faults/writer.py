"""A process that does nothing but journal requests and say so, until somebody kills it.

    python -m tests.faults.writer JOURNAL_FOLDER [honest|close-after-answer|twice]

It prints `o ID` when `open` has returned and `c ID TOKENS` when `close` has returned, one write each: what a caller may rely
on. The two dishonest ways are bugs planted for the harness to catch.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from uuid import UUID

from billing.books import EMPTY_PINS
from billing.usage import Usage
from gateway.ids import new_request_id
from gateway.metering.journal import Journal
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed
from gateway.settings import JournalSettings


def opened(request_id: UUID) -> AttemptOpened:
    return AttemptOpened(
        request_id=request_id.bytes,
        sequence=0,
        at_us=time.time_ns() // 1000,
        team_id="team_a",
        key_id="key_a",
        settlement_currency="USD",
        surface="chat.completions",
        model="m",
        provider="p",
        price_list="p",
        provider_model="m",
        streamed=True,
        tags={"filler": "x" * random.randrange(400)},
        pins=EMPTY_PINS,
        reserved=Usage(input=7, output=1000),
    )


def closed(request_id: UUID, tokens: int) -> RequestClosed:
    outcome = AttemptOutcome(sequence=0, status="completed", usage=Usage(input=7, output=tokens), latency_us=1)
    return RequestClosed(request_id.bytes, time.time_ns() // 1000, "completed", 0, False, (outcome,), 1)


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def main(folder: Path, manner: str) -> None:
    journal = Journal(folder, JournalSettings(fsync_ms=5, max_bytes=4 << 20, when_full="spill"))
    waiting: list[UUID] = []
    while True:
        time.sleep(0.001)  # a kill has to find it at every step, not behind a mountain of work
        request_id = new_request_id()
        journal.open(opened(request_id))
        say(f"o {request_id}")
        waiting.append(request_id)
        if len(waiting) > random.randrange(20):
            request_id = waiting.pop(random.randrange(len(waiting)))
            tokens = random.randrange(1, 1000)
            if manner == "close-after-answer":
                say(f"c {request_id} {tokens}")
                os.kill(os.getpid(), signal.SIGKILL)
            journal.close(closed(request_id, tokens))
            say(f"c {request_id} {tokens}")
            if manner == "twice":
                again = new_request_id()
                journal.open(opened(again))
                journal.close(closed(again, tokens))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "honest")
