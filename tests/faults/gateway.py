"""The gateway of a fault run: `metergate`, with a clock that a test can set back and, if asked, one planted bug.

    FAULT_CLOCK=FILE    the file holds by how many seconds the clock is behind
    FAULT_PLANTED=late-outcome | no-idempotency | no-journal    what the harness has to catch

Nothing of this is in the product: the product is imported and run as it is, and changed from outside only where a bug is planted.
Its recorder's process is this module too (`python -m tests.faults.gateway recorder DESCRIPTOR`), with the same clock and bug.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_CHECK_S = 0.02


def _watch_clock(file: Path) -> None:
    true_ns, true_s = time.time_ns, time.time
    behind = 0.0

    def look() -> None:
        nonlocal behind
        while True:
            try:
                behind = float(file.read_text() or 0)
            except (OSError, ValueError):
                behind = 0.0
            time.sleep(_CHECK_S)

    time.time_ns = lambda: true_ns() - int(behind * 1e9)
    time.time = lambda: true_s() - behind
    threading.Thread(target=look, daemon=True).start()


def _plant(name: str) -> None:
    if name:
        os.environ["METERGATE_COMPILED"] = "off"  # what is compiled calls its own methods, not those put in their place
    if name == "late-outcome":
        _journal_after_the_answer()
    elif name == "no-idempotency":
        _rows_under_fresh_ids()
    elif name == "no-journal":
        from gateway.metering.journal import Journal

        Journal.close = lambda self, record: None  # type: ignore[method-assign]
    elif name:
        raise SystemExit(f"no such bug: {name}")


def _journal_after_the_answer() -> None:
    """The outcome is written a moment after the caller has its last byte."""
    from gateway.metering.journal import Journal

    close = Journal.close

    def late(self: Journal, record: Any) -> None:
        threading.Timer(5.0, close, (self, record)).start()

    Journal.close = late  # type: ignore[method-assign]


def _rows_under_fresh_ids() -> None:
    """The recorder forgets where it was and gives every row an id of its own, as one without an idempotency key would."""
    from msgspec.structs import replace

    from gateway.ids import new_request_id
    from gateway.metering import shipper, source

    true: Any = vars(shipper)["usage_record"]
    vars(shipper)["usage_record"] = lambda *given: replace(true(*given), id=new_request_id())
    vars(source)["write_position"] = lambda folder, position: None


def main() -> None:
    if "FAULT_CLOCK" in os.environ:
        _watch_clock(Path(os.environ["FAULT_CLOCK"]))
    _plant(os.environ.get("FAULT_PLANTED", ""))
    if sys.argv[1] == "recorder":
        from gateway.metering.recording import main as record

        record(int(sys.argv[2]))
        return
    from gateway.cli import main as metergate
    from gateway.metering import process

    process.COMMAND[:] = [sys.executable, "-m", "tests.faults.gateway", "recorder"]

    sys.argv[0] = "metergate"
    metergate()


if __name__ == "__main__":
    main()
