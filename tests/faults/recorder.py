"""A recorder in a process of its own, so that it can be killed: `python -m tests.faults.recorder JOURNAL_FOLDER URL`.

Runs until it is told to end (a closed standard input), and then leaves what it has not shipped.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.metrics import Metrics
from gateway.settings import JournalSettings
from tests.gateway.metering.threaded import RecorderThread


def main(folder: Path, url: str) -> None:
    recorder = RecorderThread(
        folder, url, JournalSettings(), Metrics(), poll_s=0.01, housekeeping_s=0.05, timeout_s=10.0
    )
    recorder.start()
    sys.stdin.read()
    recorder.end(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
