"""What a process does with memory that it has used and does not use any more."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FREED_IN_THE_MIDDLE = """
from gateway.allocator import give_back, use_one_arena

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

use_one_arena()
pieces = [bytes(2000) for _ in range(50_000)]
kept = pieces[::100]
pieces.clear()
before_mb = resident_mb()
give_back()
print(before_mb - resident_mb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps free pages between used ones")
def test_free_pages_between_used_ones_go_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FREED_IN_THE_MIDDLE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 40  # of the 95 MB that were free
