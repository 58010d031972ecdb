"""One provider hangs, one fails three calls of ten, one is well: what callers notice of it, over more requests than a test has.

    python -m bench.outage                      # 5,000 requests of 16 callers
    python -m bench.outage --requests 20000

The scenario and its law are those of `tests/e2e/outage.py`: success of 99.9 % and more, no attempt on the hung provider longer
than its timeout, retries within their budget. Figures land in bench/results/outage.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.e2e.outage import TIMEOUT_S, run

RESULT = Path(__file__).parent / "results" / "outage.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--callers", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outage = run(Path(folder), options.requests, options.callers)
    figures = {
        "machine": {"python": platform.python_version(), "cpus": os.cpu_count()},
        "timeout_s": TIMEOUT_S,
        **asdict(outage),
        "success_percent": round(100 * outage.succeeded / outage.requests, 3),
        "retries": outage.retries,
        "retry_budget": round(outage.retry_budget, 1),
    }
    print(json.dumps(figures, indent=1))
    RESULT.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
