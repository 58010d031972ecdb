"""Compiled kernels are kept: under METERGATE_HOME where it is set, and found again by the next process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from kernels.cpu.compiled import nothing_compiled
compiled_before = not nothing_compiled()
import kernels.cpu.elementwise as e
print(compiled_before, sum(f._cache_hits for f in (e.rms_norm, e.silu_mul, e.rotary_write)))
"""


def hits(home: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, "METERGATE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return result.stdout.strip()


def test_the_second_start_compiles_nothing(tmp_path: Path) -> None:
    assert hits(tmp_path) == "False 0"
    assert hits(tmp_path) == "True 3"
    assert list((tmp_path / "numba").glob("*/**/*.nbc"))
